"""Defects among the training images are found, listed with pictures, and left out if asked."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from procon import ConfigError, Detector
from procon.cli import main
from procon.method.consensus import top_mean
from procon.method.score import fuse, read_layers
from procon.model.suspects import stand_out
from tests.conftest import part_pixels, tiny_config


def parts_of(bad: set[int], count: int = 16) -> list[NDArray[np.uint8]]:
    return [part_pixels(seed, defect=seed in bad) for seed in range(count)]


def fit(weights: Path, bad: set[int], count: int = 16, **settings: object) -> Detector:
    return Detector(tiny_config(weights, **settings), device="cpu").fit(parts_of(bad, count))


@pytest.mark.parametrize("bad", [{3}, {3, 9}, {0, 5, 15}], ids=len)
def test_planted_defects_are_found_where_they_are(tiny_backbone: Path, bad: set[int]) -> None:
    ranked = fit(tiny_backbone, bad).suspects()
    assert {suspect.number for suspect in ranked if suspect.flagged} >= bad
    assert {suspect.number for suspect in ranked[: len(bad)]} == bad
    assert sorted(suspect.number for suspect in ranked) == list(range(16))
    assert [s.excess for s in ranked] == sorted((s.excess for s in ranked), reverse=True)
    for suspect in ranked[: len(bad)]:
        left, top, right, bottom = suspect.box
        assert left < 50 and right > 30 and top < 60 and bottom > 40  # the square
        assert suspect.image == f"image {suspect.number}"
        assert suspect.map.shape == (5, 5)


def test_a_defect_that_images_share_is_found_because_suspects_are_hidden(tiny_backbone: Path) -> None:
    """Each is explained by the others as long as they count as good."""
    bad = {1, 4, 7, 10, 13}
    detector = fit(tiny_backbone, bad)
    plain = {suspect.number: suspect.score for suspect in detector.suspects(limit=1e12)}
    ranked = detector.suspects()
    assert {suspect.number for suspect in ranked[:5]} == bad
    assert all(suspect.flagged and suspect.score > plain[suspect.number] for suspect in ranked[:5])


def test_scores_are_those_against_the_memory_without_the_hidden(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone, set())
    memory, config = detector.model.memory, detector.config
    ranked = detector.suspects(limit=1e12)  # nobody is flagged: only its own anchors are hidden
    for suspect in ranked:
        ((features, _),) = detector.reader.embed_each([parts_of(set())[suspect.number]])
        layers = read_layers(features, memory, config, hidden=memory.own([suspect.number]))
        scores = fuse(layers, memory, config).ranked[0]
        assert suspect.score == pytest.approx(float(top_mean(scores, config.top_ratio)), rel=1e-6)


def test_more_than_half_are_never_suspected(tiny_backbone: Path) -> None:
    ranked = fit(tiny_backbone, set()).suspects(limit=-1e9)
    assert sum(suspect.flagged for suspect in ranked) <= 8


def test_banks_keep_their_k_anchors(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone, {2}, 8, coreset_ratio=0.1)  # twenty anchors in a bank
    assert all(np.isfinite(suspect.score) for suspect in detector.suspects(limit=-1e9))
    with pytest.raises(ConfigError, match="suspects need more training images or a larger coreset_ratio"):
        fit(tiny_backbone, {2}, 4, coreset_ratio=0.01).suspects()  # three anchors, and one image holds some of them


def test_few_images_are_refused(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="suspects can be told from at least 4 training images, got 3"):
        fit(tiny_backbone, set(), 3).suspects()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=40), st.data())
def test_the_spread_is_that_of_the_lower_half(scores: list[float], data: st.DataObject) -> None:
    trusted = [True] * len(scores)
    plain = stand_out(scores, trusted)
    middle = np.median(scores)
    worst = data.draw(st.integers(0, len(scores) - 1))
    if scores[worst] > sorted(scores)[len(scores) // 2]:  # far or farther: nobody else moves
        higher = [*scores]
        higher[worst] += 10
        moved = stand_out(higher, trusted)
        assert all(moved[i] == pytest.approx(plain[i], rel=1e-6, abs=1e-6) for i in range(len(scores)) if i != worst)
    assert all((value > 0) == (score > middle) for value, score in zip(plain, scores, strict=True))


def test_untrusted_scores_do_not_set_the_scale() -> None:
    scores = [1.0, 1.1, 1.2, 1.3, 9.0, 9.5]
    assert stand_out(scores, [True] * 4 + [False] * 2)[:4] == stand_out(scores[:4], [True] * 4)


def test_names_are_those_of_the_files(tiny_backbone: Path, tmp_path: Path) -> None:
    for index in range(6):
        Image.fromarray(part_pixels(index, defect=index == 4)).save(tmp_path / f"{index}.png")
    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(tmp_path)
    worst = detector.suspects()[0]
    assert worst.image == str(tmp_path / "4.png")


@pytest.fixture
def dirty_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "good"
    folder.mkdir()
    for index in range(12):
        Image.fromarray(part_pixels(index, defect=index == 4)).save(folder / f"{index:02d}.png")
    return folder


def run_fit(monkeypatch: pytest.MonkeyPatch, weights: Path, folder: Path, model: Path, *flags: str) -> None:
    settings = ["--backbone", "dinov2-custom", "--weights", str(weights), "--image-size", "70", "--set", "layers=-1,-3"]
    settings += ["--banks", "2", "--coreset-ratio", "0.3", "--set", "num_neighbors=3", *flags]
    monkeypatch.setattr(sys, "argv", ["procon", "fit", str(folder), "-o", str(model), *settings])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


def test_the_command_lists_them_with_pictures_and_can_leave_them_out(
    dirty_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_fit(monkeypatch, tiny_backbone, dirty_folder, tmp_path / "a.procon", "--suspects", "list")
    out = capsys.readouterr().out
    assert f"suspect: {dirty_folder / '04.png'}: " in out
    assert f"training images are suspected; look at {tmp_path / 'a-suspects.html'}" in out
    page = (tmp_path / "a-suspects.html").read_text()
    assert page.count("class=part") == 12
    assert page.index("04.png") < page.index("00.png")  # worst first
    assert "http:" not in page and "https:" not in page
    kept = Detector.load(tmp_path / "a.procon").memory
    assert kept is not None and len(kept.images) == 12  # a list alone changes nothing
    run_fit(monkeypatch, tiny_backbone, dirty_folder, tmp_path / "b.procon", "--suspects", "leave-out")
    rest = Detector.load(tmp_path / "b.procon").memory
    assert rest is not None and str(dirty_folder / "04.png") not in rest.names


def test_the_score_that_ranks_is_the_one_that_decides(tiny_backbone: Path) -> None:
    """With levels of anchors, a suspect is ranked by the relative score, as the verdict is."""
    detector = fit(tiny_backbone, {5}, 12, score_relative_to="anchors")
    assert detector.calibration is not None
    suspects = {suspect.number: suspect for suspect in detector.suspects(limit=1e9)}  # one round: nobody is hidden
    levels = np.array([suspects[number].score for number in range(12)])
    known = np.array(detector.calibration.scores)  # with stand-ins for hidden anchors: close, not equal
    assert np.argmax(levels) == np.argmax(known) == 5 and np.corrcoef(levels, known)[0, 1] > 0.9
    assert detector.suspects()[0].number == 5
