"""What a model remembers of its images, and how they are found again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon.errors import BatchError, ImageError
from procon.model.training import (
    THUMBNAIL_SIDE,
    TrainingSources,
    digest_of,
    open_all_good,
    open_good,
    pack_thumbnails,
    unpack_thumbnails,
)
from procon.model.training_image import TrainingImage
from procon.vision.images import open_image
from tests.conftest import part_pixels


def quiet(_stage: str, _done: int, _total: int) -> None:
    pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    Image.fromarray(part_pixels(0)).save(tmp_path / "a" / "0.png")
    return tmp_path / "a" / "0.png"


def test_images_are_remembered_by_name_size_and_content(path: Path) -> None:
    items, described = open_all_good([path, part_pixels(1), Image.open(path), torch.zeros(3, 20, 30)], quiet)
    assert len(items) == 4
    assert [image.name for image in described] == [str(path), "image 1", str(path), "image 3"]
    assert [image.size for image in described] == [(96, 80), (96, 80), (96, 80), (20, 30)]
    assert [image.digest.partition(":")[0] for image in described] == ["file", "pixels", "pixels", "pixels"]
    assert len({image.digest for image in described}) == 4
    assert described[2].digest == digest_of(part_pixels(0))  # the same pixels, wherever they come from
    assert TrainingImage.from_dict(described[0].to_dict()) == described[0]


def test_the_same_values_in_another_shape_are_another_image() -> None:
    assert digest_of(np.zeros((20, 30, 3), np.uint8)) != digest_of(np.zeros((30, 20, 3), np.uint8))
    assert digest_of(np.zeros((20, 30, 3), np.uint8)) != digest_of(np.zeros((20, 30, 3), np.float32))


def test_names_avoid_those_taken() -> None:
    _, described = open_all_good([part_pixels(0), part_pixels(1)], quiet, taken=["image 0", "image 2"])
    assert [image.name for image in described] == ["image 1", "image 3"]


def test_bad_images_are_refused_or_left_out(path: Path) -> None:
    broken = path.parent / "broken.png"
    broken.write_bytes(b"")
    with pytest.raises(BatchError, match=r"1 image cannot be used:\n.*broken\.png"):
        open_all_good([path, broken], quiet)
    opened = [one for one in open_good([path, broken, part_pixels(1)], lambda _: None) if isinstance(one, tuple)]
    assert [image.name for image, _ in opened] == [str(path), "image 2"]
    with pytest.raises(ImageError, match="at least one good image is needed, got an empty list"):
        open_all_good([], quiet)


def test_images_are_found_where_they_were_or_where_they_moved(path: Path, tmp_path: Path) -> None:
    ((image,),) = (open_all_good(path, quiet)[1],)
    assert TrainingSources().find([image]) == [path]
    held = part_pixels(5)
    assert TrainingSources({image.name: held}).find([image])[0] is held
    (tmp_path / "new" / "a").mkdir(parents=True)
    moved = path.rename(tmp_path / "new" / "a" / "0.png")
    assert TrainingSources(folder=tmp_path / "new").find([image]) == [moved]
    assert TrainingSources(folder=tmp_path / "new" / "a").find([image]) == [moved]
    (gone,) = TrainingSources().find([image])
    assert isinstance(gone, ImageError) and str(gone).startswith(f"{path}: is no longer there; put it back, or name")
    Image.fromarray(part_pixels(9)).save(moved)
    (changed,) = TrainingSources(folder=tmp_path / "new").find([image])
    assert str(changed) == f"{moved}: is not the image the model was fitted on; put the original back"


def test_an_image_given_by_its_pixels_is_found_by_them(path: Path) -> None:
    _, (image,) = open_all_good(Image.open(path), quiet)
    assert image.digest.startswith("pixels:") and TrainingSources().find([image]) == [path]
    Image.open(path).save(path, compress_level=0)  # other bytes, the same pixels
    assert TrainingSources().find([image]) == [path]
    path.write_bytes(b"no image")
    assert isinstance(TrainingSources().find([image])[0], ImageError)


def test_thumbnails_are_small_and_survive_packing(tmp_path: Path) -> None:
    large = np.repeat(np.repeat(part_pixels(0), 20, axis=0), 20, axis=1)
    opened = list(open_good([large, part_pixels(1)], lambda _: None, thumbnails=True))
    described = [one[0] for one in opened if isinstance(one, tuple)]
    (tmp_path / "t.jpg").write_bytes(described[0].thumbnail)
    assert open_image(tmp_path / "t.jpg").size == (THUMBNAIL_SIDE, THUMBNAIL_SIDE * 80 // 96)
    mixed = [described[0], TrainingImage("bare", (9, 9), "file:x"), described[1]]
    tensors = pack_thumbnails(mixed)
    assert tensors["thumbnails.bytes"].dtype == torch.uint8
    assert unpack_thumbnails(tensors, 3) == [image.thumbnail for image in mixed]
    assert pack_thumbnails(mixed[1:2]) == {}
    assert unpack_thumbnails({}, 2) == [b"", b""]


@pytest.mark.parametrize("ends", [[5], [5, 3], [5, 9, 9]])
def test_thumbnails_that_do_not_fit_are_refused(ends: list[int]) -> None:
    tensors = {"thumbnails.bytes": torch.zeros(9, dtype=torch.uint8), "thumbnails.ends": torch.tensor(ends)}
    with pytest.raises(ValueError, match="thumbnails must be one per image"):
        unpack_thumbnails(tensors, 2)
