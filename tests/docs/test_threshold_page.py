"""The measured parts of docs/use/threshold.md are those of benchmarks/results."""

from tests.docs.test_pages import ROOT, load_script


def test_the_page_on_the_threshold_is_up_to_date() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_verdicts.py")
    before = (ROOT / "docs" / "use" / "threshold.md").read_text(encoding="utf-8")
    parts = {"verdicts": script.verdicts, "stand_ins": script.stand_ins, "odd": script.odd}
    rows = script.read_rows()
    assert before == script.fill(script.PAGE, "generate_verdicts.py", list(parts), lambda name: parts[name](rows))


def test_the_default_rule_keeps_what_it_reaches() -> None:
    """Config.best(): at most 3 % false alarms, balanced accuracy at least 0.94, and no part below 0.85."""
    (mean,) = [
        row
        for row in load_script(ROOT / "docs" / "scripts" / "generate_verdicts.py").read_rows()
        if row["part"] == "mean of 9, full" and row["recipe"] == "Config.best()" and row["rule"] == "robust"
        if row["rate"] == "0.01"
    ]
    assert float(mean["false_alarms"]) <= 0.03
    assert float(mean["balanced_accuracy"]) >= 0.94
    assert float(mean["lowest_balanced_accuracy"]) >= 0.85
