"""How the package is used in Python: settings as keywords, patterns, progress bars, and types."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import pytest
from PIL import Image

import procon
from procon import Config, ConfigError, Detector, ImageError, Prediction
from procon.progress import no_progress, reporting, show_bars
from tests.conftest import part_pixels, tiny_config

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


# ------------------------------------------------------------------------------------------------------------ settings


def test_settings_are_keywords_of_the_detector() -> None:
    assert Detector(backbone="dinov2-small", device="cpu").config == Config(backbone="dinov2-small")
    assert Detector(Config.best(), banks=3, device="cpu").config == Config.best(banks=3)
    assert Detector(device="cpu").config == Config()


def test_unknown_settings_are_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"corset_ratio is not a setting; did you mean coreset_ratio\?"):
        Detector(corset_ratio=0.1)
    with pytest.raises(ConfigError, match="xyz is not a setting; settings are backbone, weights, "):
        Detector(xyz=1)
    with pytest.raises(ConfigError, match="banks must be"):
        Detector(banks=0)


# ------------------------------------------------------------------------------------------------------------ patterns


def test_patterns_stand_for_the_images_that_match(detector: Detector, good_folder: Path, tiny_backbone: Path) -> None:
    chosen = detector.predict(f"{good_folder}/00[0-2].png")
    assert [Path(result.source).name for result in chosen] == ["000.png", "001.png", "002.png"]
    assert len(detector.predict(good_folder.parent / "**" / "*.png")) == 8
    assert len(detector.predict(f"{good_folder}/000*")) == 1  # a pattern gives a list, also of one
    fitted = Detector(tiny_config(tiny_backbone), device="cpu").fit(f"{good_folder}/*.png")
    assert fitted.model.memory.names == detector.model.memory.names
    with pytest.raises(ImageError, match=r"\*\.tif: no image matches this pattern; expected files ending in one of"):
        detector.predict(f"{good_folder}/*.tif")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(detector: Detector, tmp_path: Path) -> None:
    for name in ("part[1].png", "part1.png"):
        Image.fromarray(part_pixels(1)).save(tmp_path / name)
    result = detector.predict(tmp_path / "part[1].png")
    assert isinstance(result, Prediction) and result.source == str(tmp_path / "part[1].png")


# ------------------------------------------------------------------------------------------------------------ progress


def test_progress_is_a_bar_a_callback_or_nothing(
    detector: Detector, good_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[str, int, int]] = []
    detector.predict(good_folder, progress=lambda *step: steps.append(step))
    assert steps == [("scoring", number, 8) for number in range(1, 9)]
    detector.predict(good_folder)
    detector.predict(good_folder, progress=False)
    assert capsys.readouterr() == ("", "")
    detector.predict(good_folder, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "scoring" in err and "8/8" in err


def test_fit_shows_a_bar_for_every_stage(
    tiny_backbone: Path, good_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = Detector(tiny_config(tiny_backbone), device="cpu").fit(good_folder, progress=True)
    err = capsys.readouterr().err
    assert all(stage in err for stage in ("reading images", "selecting anchors", "calibrating"))
    fitted.partial_fit([part_pixels(50)], progress=True)
    assert "selecting anchors" in capsys.readouterr().err


def test_bars_of_a_notebook_are_drawn_in_its_output() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), force_jupyter=False, force_terminal=True, width=100)
    with show_bars(console=console) as update:
        update("a", "scoring", 1, 2)
    assert "scoring" in console.file.getvalue()  # type: ignore[attr-defined]
    with reporting(None) as silent, reporting(False) as also_silent:
        assert silent is no_progress and also_silent is no_progress


# --------------------------------------------------------------------------------------------------------------- types


def _types(detector: Detector, array: "NDArray[np.uint8]", tensor: "torch.Tensor", image: Image.Image) -> None:
    """Never run; `mypy` checks it: one image gives a prediction, several give a list."""
    assert_type(detector.predict(array), Prediction)
    assert_type(detector.predict(tensor), Prediction)
    assert_type(detector.predict(image, progress=True), Prediction)
    assert_type(detector.predict([array, array]), list[Prediction])
    assert_type(detector.predict(["a.png", Path("b.png")]), list[Prediction])
    assert_type(detector.predict(path for path in Path("parts").iterdir()), list[Prediction])
    assert_type(detector.predict("a.png"), Any)  # a path may be a folder
    assert_type(Detector(backbone="dinov2-small").fit("parts"), Detector)
    assert_type(Detector.from_pretrained("user/part"), Detector)
    assert_type(procon.evaluate(detector, "parts").found, int | None)


def test_types_hold_when_they_are_run(detector: Detector) -> None:
    one, several = detector.predict(part_pixels(1)), detector.predict(iter([part_pixels(1)]))
    assert isinstance(one, Prediction) and isinstance(several, list)
