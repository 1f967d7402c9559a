"""The README: short, with the numbers and the chart that the results give."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_pages import ROOT, load_script, store

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def front() -> Any:
    return load_script(ROOT / "docs" / "scripts" / "generate_front.py")


def test_numbers_and_chart_are_those_of_the_results(front: Any) -> None:
    assert README.read_text(encoding="utf-8") == front.render_readme(), "run: make docs"
    assert front.CHART.read_text(encoding="utf-8") == front.render_chart(front.read_systems()), "run: make docs"


def test_it_is_read_in_a_minute_and_every_picture_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert "P-AP" not in text, "a P-AP needs a sentence about the share of defective pixels"
    pictures = re.findall(r'<img src="([^"]+)"', text)
    assert len(pictures) == 2 and all((ROOT / picture).is_file() for picture in pictures)


def row(system: str, part: str, **values: Any) -> dict[str, Any]:
    metrics = {"i_auroc": 90.0, "p_auroc": 90.0, "aupro": 80.0, "fit_s": 10.0, "score_ms": 500.0, "model_mib": 5.0}
    return {"system": system, "title": system, "backbone": "ViT-S/14 (x)", "part": part} | metrics | values


def test_peers_that_win_are_named_and_gaps_are_not_means(front: Any, tmp_path: Path) -> None:
    rows = [row("procon", "a"), row("procon", "b", i_auroc=96.0), row("procon-best", "a", i_auroc=100.0)]
    rows += [row("peer", "a", aupro=99.0, score_ms=""), row("peer", "b", aupro=97.0, score_ms="")]
    rows += [row("half", "a", i_auroc=100.0)]
    store(tmp_path, "peers", rows)
    systems = front.read_systems(tmp_path)
    assert [system.key for system in systems] == ["procon", "peer"], "the tuned recipe and half a run are left out"
    assert systems[0].values["i_auroc"] == 93.0 and "score_ms" not in systems[1].values
    words = " ".join(front.describe_wins(systems))
    assert "I-AUROC: no peer is above our 93.0." in words and "AUPRO: peer (98.0) above our 80.0." in words
    table = front.render_table(systems)
    assert "| procon on ViT-S/14 | **93.0** |" in table and "| **98.0** | 10 | – | 5 |" in table


def test_dots_of_the_chart_lie_at_their_values(front: Any) -> None:
    systems = front.read_systems()
    root = ET.fromstring(front.render_chart(systems))
    space = "{http://www.w3.org/2000/svg}"
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{space}circle")]
    timed = [system for system in systems if "score_ms" in system.values]
    assert len(dots) == 2 * len(timed)  # two panels
    for panel, metric in enumerate(front.FLOORS):
        here = dots[panel * len(timed) :][: len(timed)]
        by_time = sorted(range(len(timed)), key=lambda place: timed[place].values["score_ms"])
        assert [here[place][0] for place in by_time] == sorted(x for x, _ in here)
        by_value = sorted(range(len(timed)), key=lambda place: -timed[place].values[metric])
        assert [here[place][1] for place in by_value] == sorted(y for _, y in here)
    lines = [line for line in root.iter(f"{space}line") if line.attrib["class"] == "d"]
    assert len(lines) == 2 * (len(systems) - len(timed)), "a system without a time is a line in both panels"
    names = [text.text for text in root.iter(f"{space}text") if text.text and not text.text[0].isdigit()]
    for system in systems:
        assert names.count(front.short_name(system)) == 2, "every dot and line has its name"


def test_names_in_the_chart_cover_no_dot_and_no_other_name(front: Any) -> None:
    systems = [front.System("peer", f"Peer {letter} on ViT-S/14", {"score_ms": 500.0}) for letter in "abc"]
    dots = [(200.0, 100.0), (214.0, 104.0), (206.0, 112.0)]
    root = ET.fromstring(f"<svg>{''.join(front.draw_names(systems, dots))}</svg>")
    boxes = [(float(text.attrib["x"]), float(text.attrib["y"]) - 13, len(text.text or "")) for text in root]
    spans = [(left, top, left + 8 * count, top + 16) for left, top, count in boxes]
    everything = [*spans, *((x - 6, y - 6, x + 6, y + 6) for x, y in dots)]
    for place, one in enumerate(spans):
        assert not any(front.overlaps(one, other) for other in everything[:place] + everything[place + 1 :])
