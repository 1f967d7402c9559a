"""The script of the tutorial runs on rendered parts, and its page is compared with what happened."""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from procon import Config, Prediction
from tests.conftest import tiny_config, write_tiny_backbone
from tests.docs.test_pages import ROOT, load_script

DOCS = ROOT / "docs"
SCRIPTS = DOCS / "scripts"
SIZE = 140  # pixels of a rendered part: a 10 x 10 grid
STEPS = ["fitted", "one added", "all added", "one forgotten"]

Make = Callable[[Path, Config, int], Any]


@pytest.fixture(scope="module")
def make() -> Make:
    """Run docs/scripts/make_tutorial.py: (output, config, size of the parts) to what happened."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        script = load_script(SCRIPTS / "make_tutorial.py")
    finally:
        sys.path.remove(str(SCRIPTS))
    return lambda output, config, size: script.make(output, config, partial(script.render_flanges, size=size))


@pytest.fixture(scope="module")
def sees_color(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A tiny random backbone with channels for colour, which its blocks pass on.

    Random features cannot tell paint or rust from steel, and these can. They do not see the shape of an edge.
    """
    from transformers import Dinov2Model

    folder = write_tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")
    model = Dinov2Model.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda1" in name or "position" in name:
                parameter.zero_()
        first = model.embeddings.patch_embeddings.projection
        first.weight.mul_(1 / 30)
        first.bias.zero_()[0] = 1
        first.weight[0] = 0
        for row, weights in ((1, (5, -5, 0)), (2, (0, 5, -5))):  # red against green, green against blue
            first.weight[row] = torch.tensor(weights)[:, None, None].expand(3, 14, 14) / 14**2
    model.save_pretrained(folder)
    return tiny_config(folder, image_size=SIZE, layers=(-1,), coreset_ratio=0.1)


@pytest.fixture(scope="module")
def walked(make: Make, sees_color: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    output = tmp_path_factory.mktemp("tutorial")
    return make(output, sees_color, SIZE), output


def flagged(results: dict[str, Prediction], *kinds: str) -> set[str]:
    return {path for path, result in results.items() if Path(path).parent.name in kinds and result.is_anomalous}


def check_story(walk: Any) -> None:
    """Adding clears the false alarms, forgetting finds the missed defect, and all other verdicts stay."""
    results = walk.results
    assert list(results) == STEPS
    first, one, more, last = results.values()
    assert walk.alarm in flagged(first, "marked")
    assert walk.alarm not in flagged(one, "marked")
    cured = flagged(first, "marked") - flagged(more, "marked") - set(walk.added)
    assert cured, "a part that was never added must be cleared by those that were"
    assert not flagged(more, "marked") and not flagged(last, "marked"), "no marked part is flagged in the end"

    second_photograph = "parts/new/rust/002.png"
    assert walk.forgotten == "parts/good/011.png"
    for path in (second_photograph, walk.forgotten):
        assert not more[path].is_anomalous
        assert last[path].is_anomalous

    assert not any(flagged(step, "good") - {walk.forgotten} for step in results.values())
    found = flagged(first, "rust", "scratch", "chipped_edge")
    assert {"parts/new/rust/000.png", "parts/new/rust/001.png"} <= found
    for step in results.values():
        assert found <= flagged(step, "rust", "scratch", "chipped_edge")
    assert walk.limits.visibility().counted.total > 20
    (before, after), (other_before, other_after) = walk.faint.values()
    assert not before.is_anomalous and not other_before.is_anomalous, "both defects are missed before the lesson"
    assert after.score > before.score and other_after.score >= other_before.score
    assert walk.log == ("threshold", *["added"] * len(walk.added), "forgot", "taught")
    assert walk.same


def test_the_walk_shows_what_it_promises(walked: tuple[Any, Path]) -> None:
    check_story(walked[0])


def test_the_page_tells_what_happened(walked: tuple[Any, Path]) -> None:
    walk, output = walked
    text = (output / "start" / "tutorial.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for path, result in walk.results["one forgotten"].items():
        score = f"{result.score:.3f}"
        assert rows[path.removeprefix("parts/")].endswith(f"| {f'**{score}**' if result.is_anomalous else score} |")
    for command in ("fit", "threshold", "predict", "explain", "add", "forget", "limits", "teach", "info"):
        assert f"\n$ procon {command} " in text
    assert "the same scores: True" in text
    assert f"forgot 1 image ({walk.forgotten})" in text
    pictures = re.findall(r"\]\(\.\./(images/[^)]+)\)", text)
    assert sorted(pictures) == [f"images/{path.name}" for path in sorted((output / "images").iterdir())]
    for name in pictures:
        with Image.open(output / name) as picture:
            assert picture.width <= 1200
        assert (output / name).stat().st_size < 200 * 1024


def test_the_same_walk_gives_the_same_page(
    make: Make, walked: tuple[Any, Path], sees_color: Config, tmp_path: Path
) -> None:
    make(tmp_path, sees_color, SIZE)
    files = [path for path in walked[1].rglob("*") if path.is_file()]
    assert len(files) > 1
    for path in files:
        assert (tmp_path / path.relative_to(walked[1])).read_bytes() == path.read_bytes(), path.name


def test_the_page_in_the_repository_is_of_this_script(walked: tuple[Any, Path]) -> None:
    """The numbers need real weights; headings, code, tables and pictures do not."""

    def skeleton(path: Path) -> list[str]:
        text = path.read_text(encoding="utf-8")
        code = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        names = re.findall(r"^#+ .+$|^\| `[^`]+`|\(\.\./images/[^)]+\)", text, re.MULTILINE)
        return names + [block for block in code if "config = " not in block]

    assert skeleton(DOCS / "start" / "tutorial.md") == skeleton(walked[1] / "start" / "tutorial.md"), (
        "run: make tutorial"
    )


@pytest.mark.real
@pytest.mark.skipif(not os.environ.get("PROCON_REAL_WEIGHTS"), reason="PROCON_REAL_WEIGHTS names no weights")
def test_the_walk_with_real_weights(make: Make, tmp_path: Path) -> None:
    path = Path(os.environ["PROCON_REAL_WEIGHTS"]).resolve()
    weights = path / "dinov2_vits14_dav2_fp16.safetensors" if path.is_dir() else path
    walk = make(tmp_path, Config(backbone="dinov2-small", weights=str(weights)), 448)
    check_story(walk)
    assert len(flagged(walk.results["one forgotten"], "rust", "scratch", "chipped_edge")) == 7
