"""The page of claims says what the results say, by the rule that it states."""

import pytest

from tests.docs.test_pages import ROOT, load_script


def test_the_page_is_that_of_the_results() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_claims.py")
    expected = script.page()
    assert script.PAGE.read_text(encoding="utf-8") == expected, "run: python docs/scripts/generate_claims.py"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.3, 0.0, 0.1], "supports"),
        ([0.3, -0.3], "weakens"),
        ([0.0, 0.1], "weakens"),
        ([0.1, -0.3], "contradicts"),
    ],
)
def test_a_verdict_follows_from_the_differences(values: list[float], verdict: str) -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_claims.py")
    assert script.judge(values) == verdict


def test_saturation_is_the_absence_of_a_difference() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_claims.py")
    assert script.judge([0.1, -0.2], saturates=True) == "supports"
    assert script.judge([0.4, -0.1], saturates=True) == "weakens"
    assert script.judge([3.0, 2.0], saturates=True) == "contradicts"


def test_differences_pair_the_rows_of_one_seed() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_claims.py")
    rows = [
        {"table": "banks", "row": row, "category": "part", "seed": seed, "p_ap": value}
        for row, seed, value in (
            ("B = 5", "0", "50"),
            ("B = 5", "1", "52"),
            ("B = 3", "0", "49"),
            ("B = 3", "1", "52.5"),
        )
    ]
    step = script.Step("banks", "banks", "B = 5", "B = 3")
    assert script.differences(step, rows, "p_ap") == {"part": [1.0, -0.5]}
    assert script.cell([1.0, -0.5]) == "+0.25 (-0.50 to +1.00)"
