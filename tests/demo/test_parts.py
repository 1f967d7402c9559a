from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from procon.demo.defects import DEFECT_KINDS, PART_KINDS
from procon.demo.parts import Part, plan_set, render_part, write_set

SIZE = 160  # pixels; enough to resolve the thinnest scratch


def render_set(train: int, good: int, defects_per_kind: int, seed: int) -> dict[tuple[str, str, str], Part]:
    """The parts of a set by (split, kind, name)."""
    plan = plan_set(train, good, defects_per_kind, seed)
    return {(split, kind, name): render_part(kind, part_seed, 64) for split, kind, name, part_seed in plan}


def test_the_same_seed_gives_the_same_bytes_whatever_ran_before() -> None:
    first = render_part("rust", 5, SIZE)
    np.random.seed(0)  # noqa: NPY002  the legacy global state is the one under test
    render_part("scratch", 6, SIZE)
    second = render_part("rust", 5, SIZE)
    assert first.image.tobytes() == second.image.tobytes()
    assert np.array_equal(first.mask, second.mask)


def test_rendering_leaves_the_global_random_state_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    render_part("chipped_edge", 1, SIZE)
    assert np.random.random() == expected  # noqa: NPY002


def test_other_seeds_give_other_pictures_of_the_same_part() -> None:
    one, two = (render_part("good", seed, SIZE).image.astype(int) for seed in (1, 2))
    difference = np.abs(one - two).mean()
    assert 1 < difference < 40


@pytest.mark.parametrize("kind", PART_KINDS)
def test_shapes_types_and_mask(kind: str) -> None:
    part = render_part(kind, 11, SIZE)
    assert part.image.shape == (SIZE, SIZE, 3)
    assert part.image.dtype == np.uint8
    assert part.mask.shape == (SIZE, SIZE)
    assert part.mask.dtype == np.bool_
    assert part.mask.any() == (kind != "good")


@pytest.mark.parametrize("kind", DEFECT_KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_mask_is_where_the_picture_differs_from_its_good_twin(kind: str, seed: int) -> None:
    part, twin = render_part(kind, seed, SIZE), render_part("good", seed, SIZE)
    change = np.abs(part.image.astype(int) - twin.image.astype(int)).max(axis=2)
    assert change[~ndimage.binary_dilation(part.mask)].max() <= 2
    assert change[part.mask].mean() > 8
    # Between a twentieth and a quarter of the picture's side, in its longer direction.
    rows, columns = np.nonzero(part.mask)
    extent = max(np.ptp(rows), np.ptp(columns)) + 1
    assert 0.05 * SIZE < extent < 0.25 * SIZE


def test_a_set_has_every_group_and_a_larger_one_extends_it() -> None:
    parts = render_set(2, 1, 1, seed=4)
    tests = [("test", kind, "000") for kind in PART_KINDS]
    assert list(parts) == [("train", "good", "000"), ("train", "good", "001"), *tests]
    pictures = {part.image.tobytes() for part in parts.values()}
    assert len(pictures) == len(parts)
    larger = render_set(3, 0, 0, seed=4)
    for name in ("000", "001"):
        assert larger["train", "good", name].image.tobytes() == parts["train", "good", name].image.tobytes()
    other = render_set(1, 0, 0, seed=5)
    assert other["train", "good", "000"].image.tobytes() != parts["train", "good", "000"].image.tobytes()


def test_the_written_tree_and_writing_over_it(tmp_path: Path) -> None:
    def snapshot() -> dict[str, bytes]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files}

    write_set(tmp_path, train=2, good=1, defects_per_kind=1, seed=7, size=64)
    first = snapshot()
    expected = {"train/good/000.png", "train/good/001.png", "test/good/000.png"}
    expected |= {f"test/{kind}/000.png" for kind in DEFECT_KINDS}
    expected |= {f"ground_truth/{kind}/000_mask.png" for kind in DEFECT_KINDS}
    assert set(first) == expected

    for (split, kind, name), part in render_set(0, 0, 1, seed=7).items():
        mask = np.asarray(Image.open(tmp_path / "ground_truth" / kind / f"{name}_mask.png"))
        assert mask.dtype == np.uint8
        assert set(np.unique(mask)) == {0, 255}
        assert np.array_equal(mask == 255, part.mask)
        image = np.asarray(Image.open(tmp_path / split / kind / f"{name}.png"))
        assert np.array_equal(image, part.image)

    write_set(tmp_path, train=2, good=1, defects_per_kind=1, seed=7, size=64)
    assert snapshot() == first


@pytest.mark.parametrize(
    ("kind", "seed", "size", "message"),
    [
        ("bent", 0, 64, r"kind must be one of good, .*, got 'bent'"),
        ("good", -1, 64, r"seed must be an integer of at least 0, got -1"),
        ("good", 0, 63, r"size must be an integer of at least 64, got 63"),
        ("good", True, 64, r"seed must be .*, got True"),
    ],
)
def test_a_bad_part_is_refused(kind: str, seed: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_part(kind, seed, size)


def test_a_bad_set_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train must be .*, got -1"):
        plan_set(-1, 0, 0)
    with pytest.raises(ValueError, match=r"defects_per_kind must be .*, got 1.5"):
        write_set(tmp_path, train=1, good=1, defects_per_kind=1.5)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
