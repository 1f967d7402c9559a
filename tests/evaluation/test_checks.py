"""`procon check`: benchmarks are named and counted, and every kind of damage is found."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from procon.cli import main
from procon.errors import ImageError
from procon.evaluation.data.checks import check_folder
from procon.evaluation.data.datasets import BENCHMARKS

Check = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run `procon check ARGS` where all weights can be had: (exit code, output, problems)."""
    monkeypatch.setattr("procon.vision.sources.find_reachable_backbone", lambda preferred: preferred)

    def call(*arguments: object) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", ["procon", "check", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        problems = [line.removeprefix("problem: ") for line in err.splitlines() if line.startswith("problem: ")]
        return int(stop.value.code or 0), out, problems

    return call


def write(root: Path, *names: str, size: tuple[int, int] = (40, 30)) -> Path:
    """Grey images of ``size`` (width, height)."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size).save(root / name)
    return root


def mvtec_form(root: Path) -> Path:
    write(root, "train/good/000.png", "train/good/001.png", "test/good/000.png", "test/dent/000.png")
    return write(root, "ground_truth/dent/000_mask.png")


def visa(root: Path) -> Path:
    images, mask = "candle/Data/Images", "candle/Data/Masks/Anomaly/000.png"
    write(root, f"{images}/Normal/0000.JPG", f"{images}/Normal/0001.JPG", f"{images}/Anomaly/000.JPG", mask)
    rows = ["object,split,label,image,mask", f"candle,train,normal,{images}/Normal/0000.JPG,"]
    rows += [f"candle,test,normal,{images}/Normal/0001.JPG,", f"candle,test,anomaly,{images}/Anomaly/000.JPG,{mask}"]
    (root / "split_csv").mkdir()
    (root / "split_csv" / "1cls.csv").write_text("\n".join(rows))
    return root


def test_a_benchmark_with_categories_missing(check: Check, tmp_path: Path) -> None:
    for category in ("tubes", "connector"):
        mvtec_form(tmp_path / category)
    write(tmp_path / "tubes", "test/bend/000.png", "ground_truth/bend/000_mask.png", size=(60, 30))
    code, out, problems = check(tmp_path)
    assert (code, problems) == (0, [])
    assert out == (
        f"{tmp_path}: MPDD, 2 of 6 categories\n"
        "  category                   train    good  defective   masks\n"
        "  connector                      2       1          1       1\n"
        "  tubes                          2       1          2       2\n"
        "  total                          4       2          3       3\n"
        "  missing: bracket_black, bracket_brown, bracket_white, metal_plate\n"
        "  8 images of 40 x 30 pixels\n"
        "  1 image of 60 x 30 pixels\n"
        "nothing wrong\n"
        f"next: procon bench mpdd --root {tmp_path}\n"
    )


def test_a_whole_benchmark_is_compared_with_the_published_numbers(tmp_path: Path) -> None:
    for category in BENCHMARKS["btad"].categories:
        write(tmp_path / category, "train/ok/0.bmp", "test/ok/0.bmp", "test/ko/0.bmp", "ground_truth/ko/0.png")
    report = check_folder(tmp_path)
    assert report.heading == "BTAD, 3 of 3 categories"
    assert report.lines[-3:] == (
        "  total                          3       3          3       3",
        "  as published                1799     451        290     290",
        "  9 images of 40 x 30 pixels",
    )
    assert not any("missing" in line for line in report.lines)
    assert report.problems == ()


def test_the_split_is_named(check: Check, tmp_path: Path) -> None:
    code, out, _ = check(visa(tmp_path))
    assert code == 0
    assert out.startswith(f"{tmp_path}: VisA, 1 of 12 categories, split split_csv/1cls.csv\n")
    assert f"next: procon bench visa --root {tmp_path}\n" in out


def test_categories_that_nobody_published(check: Check, tmp_path: Path) -> None:
    for category in ("nut", "bolt"):
        mvtec_form(tmp_path / category)
    code, out, _ = check(tmp_path)
    assert code == 0
    assert out.startswith(f"{tmp_path}: 2 categories, no published dataset\n")
    assert "nothing wrong\ninput of 392 x 392 pixels" in out and out.endswith(f"\nnext: procon eval {tmp_path}\n")
    assert "missing" not in out and "published  " not in out


def test_one_category_beside_other_folders(tmp_path: Path) -> None:
    mvtec_form(tmp_path / "nut")
    write(tmp_path, "pictures/a.png")
    assert check_folder(tmp_path).heading == "1 category, no published dataset"


def test_damage_is_found_in_every_category(check: Check, tmp_path: Path) -> None:
    for category in ("bottle", "wood"):
        mvtec_form(tmp_path / category)
    write(tmp_path / "bottle", "ground_truth/dent/000_mask.png", size=(30, 40))
    write(tmp_path / "bottle", "ground_truth/dent/777_mask.png")
    write(tmp_path / "wood", "test/dent/001.png")
    (tmp_path / "wood/train/good/000.png").write_text("no image")
    os.truncate(tmp_path / "wood/ground_truth/dent/000_mask.png", 45)
    code, _, problems = check(tmp_path)
    assert code == 2
    bottle, wood = tmp_path / "bottle", tmp_path / "wood"
    damaged, *others = sorted(problems, key=lambda problem: "000_mask.png: is damaged" not in problem)
    assert damaged.startswith(f"{wood / 'ground_truth/dent/000_mask.png'}: is damaged or incomplete")
    assert set(others) == {
        f"{bottle / 'ground_truth/dent/000_mask.png'}: is 30 x 40 pixels, its image 40 x 30; make them equal",
        f"{bottle / 'ground_truth/dent/777_mask.png'}: is a mask without an image",
        f"{wood / 'test/dent/001.png'}: has no mask",
        f"{wood / 'train/good/000.png'}: is not an image Pillow can read; remove it or export it as PNG or JPEG",
    }
    assert len(problems) == 5


def test_a_mask_without_an_image_is_opened_too(tmp_path: Path) -> None:
    mvtec_form(tmp_path / "bottle")
    orphan = tmp_path / "bottle/ground_truth/dent/777_mask.png"
    orphan.write_text("no image")
    problems = check_folder(tmp_path).problems
    assert [problem.split("; ")[0] for problem in problems] == [
        f"{orphan}: is not an image Pillow can read",
        f"{orphan}: is a mask without an image",
    ]


def test_quick_opens_nothing_but_still_finds_names_that_do_not_match(check: Check, tmp_path: Path) -> None:
    mvtec_form(tmp_path / "bottle")
    (tmp_path / "bottle/train/good/000.png").write_text("no image")
    code, out, problems = check("--quick", tmp_path)
    assert (code, problems) == (0, [])
    assert "pixels" not in out
    assert "\nnothing wrong with the names; no file was opened\n" in out
    write(tmp_path / "bottle", "ground_truth/dent/777_mask.png")
    code, _, problems = check("--quick", tmp_path)
    assert code == 2
    assert problems == [f"{tmp_path / 'bottle/ground_truth/dent/777_mask.png'}: is a mask without an image"]


def test_files_of_a_split_that_are_not_there(check: Check, tmp_path: Path) -> None:
    visa(tmp_path)
    (tmp_path / "candle/Data/Images/Normal/0001.JPG").unlink()
    (tmp_path / "candle/Data/Masks/Anomaly/000.png").unlink()
    for arguments, remedy in (((), "check the path"), (("--quick",), "get it again")):
        code, _, problems = check(*arguments, tmp_path)
        assert code == 2
        assert problems == [
            f"{tmp_path / 'candle/Data/Images/Normal/0001.JPG'}: no such file; {remedy}",
            f"{tmp_path / 'candle/Data/Masks/Anomaly/000.png'}: no such file; {remedy}",
        ]


def test_a_benchmark_without_images(check: Check, tmp_path: Path) -> None:
    (tmp_path / "bottle/train/good").mkdir(parents=True)
    code, _, problems = check(tmp_path)
    assert code == 2
    assert sorted(problems) == [
        f"{tmp_path}: bottle has no good images to fit on",
        f"{tmp_path}: bottle has no test images",
    ]


def test_a_part_of_a_benchmark_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, "candle/Data/Images/Normal/0000.JPG")
    with pytest.raises(ImageError, match=r"is VisA without its split; expected split_csv/1cls\.csv"):
        check_folder(tmp_path)


# ------------------------------------------------------------------------------------------------------- one category


def test_a_category_of_a_benchmark(check: Check, tmp_path: Path) -> None:
    code, out, _ = check(mvtec_form(tmp_path / "bottle"))
    assert code == 0
    assert out == (
        f"{tmp_path / 'bottle'}: an MVTec tree (train/good, test/<kind>, ground_truth/<kind>)\n"
        "  train/good                    2 images\n"
        "  test/dent                     1 image       1 mask\n"
        "  test/good                     1 image\n"
        "  4 images of 40 x 30 pixels\n"
        "nothing wrong\n"
        "input of 392 x 392 pixels, 28 x 28 patches, as set by image_size\n"
        "images of 40 x 30 pixels: scale 9.80 across and 13.07 down, so a patch covers 1.4 x 1.1 of their pixels\n"
        "lost: the proportions of 2 of 2 images, stretched in one direction up to 1.3 times as much as in the other; "
        "--image-size auto keeps them\n"
        f"next: procon fit {tmp_path / 'bottle'} -o part.procon\n"
    )


def test_a_category_in_a_form_that_fit_does_not_know(check: Check, tmp_path: Path) -> None:
    root = write(tmp_path / "01", "train/ok/0.bmp", "test/ok/0.bmp", "test/ko/0.bmp", "ground_truth/ko/0.png")
    code, out, _ = check(root)
    assert code == 0
    assert out.startswith(f"{root}: a BTAD tree (train/ok, test/ok, test/ko, ground_truth/ko)\n  train/ok ")
    assert "  test/ko                       1 image       1 mask\n" in out
    assert out.endswith(f"next: procon fit {root / 'train/ok'} -o part.procon\n")
    root = write(tmp_path / "scans", "train/good/0.png", "test/good/img/0.png", "test/Ungood/img/0.png")
    write(root, "test/Ungood/label/0.png")
    code, out, _ = check(root)
    assert code == 0
    assert out.startswith(f"{root}: a BMAD tree ")
    assert "  test/Ungood                   1 image       1 mask\n" in out
    assert out.endswith(f"next: procon fit {root / 'train/good'} -o part.procon\n")


def test_a_category_whose_split_is_elsewhere(check: Check, tmp_path: Path) -> None:
    code, out, _ = check(visa(tmp_path) / "candle")
    assert code == 0
    assert out.startswith(f"{tmp_path / 'candle'}: a category, split split_csv/1cls.csv\n  train  ")
    assert "  test/anomaly                  1 image       1 mask\n" in out
    # Data/Images/Normal holds test images as well: fitting on it would be wrong.
    assert out.endswith(f"next: procon eval {tmp_path / 'candle'}\n")


def test_good_bad_mask(check: Check, tmp_path: Path) -> None:
    root = write(tmp_path / "my part", "good/1.png", "bad/1.png", "bad/2.png", "mask/1.png")
    code, out, problems = check(root)
    assert code == 2
    assert out.startswith(f"{root}: a good/ bad/ mask/ tree\n  good                          1 image\n")
    assert problems == [f"{root / 'bad/2.png'}: has no mask"]
    (root / "bad/2.png").unlink()
    code, out, _ = check(root)
    assert code == 0
    assert out.endswith(f"next: procon fit '{root}' -o part.procon\n"), "can be pasted"


def test_masks_are_not_demanded_where_there_are_none(tmp_path: Path) -> None:
    assert check_folder(write(tmp_path, "good/1.png", "bad/1.png")).problems == ()


def test_flat_nested_and_empty(check: Check, tmp_path: Path) -> None:
    code, out, _ = check(write(tmp_path / "flat", "1.png", "2.png"))
    assert code == 0
    assert out.startswith(
        f"{tmp_path / 'flat'}: a flat folder of good images\n  good                          2 images\n"
    )
    code, out, problems = check(write(tmp_path / "nested", "a/1.png", "b/2.png"))
    assert (code, out) == (2, f"{tmp_path / 'nested'}: no known layout\n")
    assert problems == [f"{tmp_path / 'nested'}: 2 images in subfolders: name the folder of good parts"]
    (tmp_path / "empty/good").mkdir(parents=True)
    code, out, problems = check(tmp_path / "empty")
    assert (code, out) == (2, f"{tmp_path / 'empty'}: a good/ bad/ mask/ tree\n")
    assert problems == [f"{tmp_path / 'empty'}: no images at all"]


def test_images_of_a_folder_come_before_categories_in_it(tmp_path: Path) -> None:
    write(tmp_path, "1.png")
    mvtec_form(tmp_path / "nut")
    report = check_folder(tmp_path)
    assert report.heading == "a flat folder of good images"
    assert report.lines[0] == "  good                          1 image"


def test_no_good_images(check: Check, tmp_path: Path) -> None:
    root = write(tmp_path, "bad/1.png")
    (root / "good").mkdir()
    code, _, problems = check(root)
    assert code == 2
    assert problems == [f"{root}: no good images to fit on"]


def test_progress_counts_every_file_once(tmp_path: Path) -> None:
    mvtec_form(tmp_path / "bottle")
    (tmp_path / "bottle/train/good/000.png").write_text("no image")
    steps: list[tuple[str, int, int]] = []
    check_folder(tmp_path, lambda *step: steps.append(step))
    assert steps == [("opening images", done, 5) for done in range(1, 6)]


# --------------------------------------------------------------------------------------- a command that works here


def test_images_that_would_be_squeezed_get_an_input_of_their_shape(check: Check, tmp_path: Path) -> None:
    _, out, _ = check(write(tmp_path / "long", "1.png", "2.png", size=(1200, 400)))
    assert "images of 1200 x 400 pixels would be squeezed into a square of 392 pixels; --image-size auto keeps" in out
    assert "input of 672 x 224 pixels, 48 x 16 patches, chosen from the proportions of the images" in out
    assert "scale 0.56 across and 0.56 down, so a patch covers 25.0 x 25.0 of their pixels" in out
    assert "lost: detail finer than the scale" in out and "lost: the proportions" not in out
    assert re.search(r"next: procon fit \S+ -o part.procon --image-size auto\n", out)


def test_the_shape_is_that_of_the_good_images_alone(check: Check, tmp_path: Path) -> None:
    root = write(tmp_path / "part", "good/1.png", size=(400, 400))
    write(root, "bad/1.png", "bad/2.png", "bad/3.png", size=(1200, 400))
    _, out, _ = check(root)
    assert "images of 400 x 400 pixels: scale 0.98 across and 0.98 down" in out and "image-size" not in out


def test_images_of_many_shapes_are_padded(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "mixed", "1.png", size=(1200, 400))
    _, out, _ = check(write(tmp_path / "mixed", "2.png", size=(400, 1200)))
    assert out.endswith("-o part.procon --image-size auto --set aspect=pad\n")
    assert "the images have 2 sizes" in out and "lost: the proportions" not in out


def test_images_close_to_a_square_need_no_flag(check: Check, tmp_path: Path) -> None:
    _, out, _ = check(write(tmp_path / "square", "1.png", size=(40, 36)))
    assert "squeezed" not in out and "scale 9.80 across and 10.89 down" in out and out.endswith("-o part.procon\n")


@pytest.mark.parametrize(
    ("backbone", "flags", "words"),
    [
        ("dinov2-base", "", ""),
        ("dinov2-small", " --backbone dinov2-small", "dinov2-small works"),
        (None, " --weights dinov2-base", "hf download facebook/dinov2-base --local-dir dinov2-base"),
    ],
)
def test_the_next_command_names_weights_that_can_be_had(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str | None, flags: str, words: str
) -> None:
    monkeypatch.setattr("procon.vision.sources.find_reachable_backbone", lambda _: backbone)
    code, out, _ = check(write(tmp_path / "good", "1.png"))
    assert code == 0 and words in out
    assert out.splitlines()[-1] == f"next: procon fit {tmp_path / 'good'} -o part.procon{flags}"
