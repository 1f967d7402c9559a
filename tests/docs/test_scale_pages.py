"""The measured parts of the pages on scale and on peers are those of the results."""

from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT, load_script

script = load_script(ROOT / "docs" / "scripts" / "generate_scale.py")


def test_a_section_that_shares_a_command_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    assert script.section("factory") == f"Not measured yet: `{script.COMMANDS['cluster']}`"


def row(system: str, p_ap: float, fit: float) -> dict[str, str]:
    values = dict.fromkeys(script.METRICS, "90.0") | dict.fromkeys(script.COSTS, "100")
    return values | {
        "system": system,
        "title": system,
        "backbone": "ViT-S/14 (X)",
        "p_ap": str(p_ap),
        "fit_s": str(fit),
    }


def test_where_a_peer_wins_is_said_in_words() -> None:
    assert script.wins([row("procon", 80.0, 10.0), row("other", 80.1, 20.0)]) == [
        "No peer is more than 0.2 points above ours in any of these metrics."
    ]
    words = script.wins([row("procon", 80.0, 10.0), row("other", 81.5, 5.0)])
    assert words == [
        "P-AP: other on ViT-S/14 (81.5) above our 80.",
        "Less to fit than our 10 s: other on ViT-S/14 (5.0).",
    ]
    missing = row("gone", 99.0, 1.0) | dict.fromkeys((*script.METRICS, *script.COSTS), "")  # was not run
    assert script.wins([row("procon", 80.0, 10.0), missing])[0].startswith("No peer")
    elsewhere = row("trained", 99.0, 1.0) | dict.fromkeys(script.COSTS, "")  # its times are not of these cores
    assert script.wins([row("procon", 80.0, 10.0), elsewhere]) == ["P-AP: trained on ViT-S/14 (99.0) above our 80."]


def test_means_are_of_systems_that_ran_on_all_parts() -> None:
    rows = [
        {**row("procon", 80.0, 10.0), "part": "a"},
        {**row("procon", 70.0, 20.0), "part": "b"},
        {**row("trained", 90.0, 1.0), "part": "a"} | dict.fromkeys(script.COSTS, ""),
        {**row("trained", 81.0, 1.0), "part": "b"},
        {**row("once", 99.0, 1.0), "part": "a"},
    ]
    _, table, words = script.overall(rows, ["a", "b"])
    assert table.splitlines()[1] == "|---|" + 9 * "---:|", "numbers are aligned to the right"
    assert "| procon on ViT-S/14 | **90.0** | **90.0** | 75.0 | **90.0** | **90.0** | 15 | 100 | 100 | 100 |" in table
    assert "| trained on ViT-S/14 | **90.0** | **90.0** | **85.5** | **90.0** | **90.0** | – | – | – | – |" in table
    assert "once" not in table
    assert "– was not measured" in words


def test_published_rows_are_the_papers() -> None:
    text = script.published()
    assert "| SimpleNet | MVTec-AD | 99.6 | 54.8 | 90.0 |" in text
    assert "| INP-Former | Real-IAD | 92.1 | 48.1 | 95.6 |" in text
