from pathlib import Path

import pytest

from procon.errors import ImageError
from procon.vision.folders import read_layout, training_images


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"never opened")
    return root


def test_flat(tmp_path: Path) -> None:
    write(tmp_path, "10.png", "9.png", "notes.txt", ".thumb.png", "other/1.png")
    layout = read_layout(tmp_path)
    assert layout.name == "flat"
    assert layout.train == (tmp_path / "9.png", tmp_path / "10.png")
    assert layout.test == {}
    assert training_images(tmp_path) == layout.train


def test_mvtec(tmp_path: Path) -> None:
    write(tmp_path, "train/good/000.png", "train/good/001.png", "test/good/000.png", "test/hole/000.png")
    write(tmp_path, "test/.cache/000.png", "test/readme.txt", "ground_truth/hole/000_mask.png", "license.png")
    (tmp_path / "ground_truth" / "good").mkdir()
    layout = read_layout(tmp_path)
    assert layout.name == "mvtec"
    assert layout.train == (tmp_path / "train/good/000.png", tmp_path / "train/good/001.png")
    assert layout.test == {kind: (tmp_path / f"test/{kind}/000.png",) for kind in ("good", "hole")}
    assert training_images(tmp_path) == layout.train


def test_mvtec_without_a_test_set(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path, "train/good/000.png"))
    assert layout.name == "mvtec"
    assert layout.test == {}


def test_good_bad(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path, "good/1.png", "good/2.png", "bad/1.png", "mask/1.png"))
    assert layout.name == "good-bad"
    assert layout.train == (tmp_path / "good/1.png", tmp_path / "good/2.png")
    assert layout.test == {"bad": (tmp_path / "bad/1.png",)}
    assert training_images(tmp_path) == layout.train


def test_good_alone(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path, "good/1.png"))
    assert layout.name == "good-bad"
    assert layout.test == {}


def test_nested_folders_are_listed_for_the_user(tmp_path: Path) -> None:
    write(tmp_path, *(f"line{line}/part.png" for line in range(6)), "line0/more.png")
    assert read_layout(tmp_path).name == "nested"
    with pytest.raises(ImageError) as caught:
        training_images(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: has no images of its own, but 7 in subfolders (line0, line1, ")
    assert "line5" not in str(caught.value)
    assert str(caught.value).endswith("line4, ...); name the one with the good parts")


@pytest.mark.parametrize("names", [[], ["notes.txt"], [".hidden.png"], [".cache/a.png"]])
def test_a_folder_without_images(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, *names)
    layout = read_layout(tmp_path)
    assert (layout.name, layout.train) == ("nested", ())
    with pytest.raises(ImageError, match=r"holds no images; put good parts there as one of \.bmp, .*\.webp") as caught:
        training_images(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: ")


@pytest.mark.parametrize("empty", ["train/good", "good"])
def test_an_empty_training_folder_points_to_where_images_are(tmp_path: Path, empty: str) -> None:
    (tmp_path / empty).mkdir(parents=True)
    write(tmp_path, "elsewhere/a.png")
    with pytest.raises(ImageError, match=r"1 in subfolders \(elsewhere\); name the one with the good parts"):
        training_images(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="parts: no such folder; check the path"):
        training_images(tmp_path / "parts")


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.png")
    with pytest.raises(ImageError, match=r"a\.png: is a file where a folder of images was expected"):
        training_images(tmp_path / "a.png")
