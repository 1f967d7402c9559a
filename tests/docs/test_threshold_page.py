"""The measured parts of docs/use/threshold.md are those of benchmarks/results."""

from tests.docs.test_pages import ROOT, load_script


def test_the_page_on_the_threshold_is_up_to_date() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_verdicts.py")
    before = (ROOT / "docs" / "use" / "threshold.md").read_text(encoding="utf-8")
    parts = {"verdicts": script.verdicts, "few": script.few, "stand_ins": script.stand_ins, "odd": script.odd}
    rows = script.read_rows()
    assert before == script.fill(script.PAGE, "generate_verdicts.py", list(parts), lambda name: parts[name](rows))


def find_row(part: str, recipe: str, rule: str = "robust", rate: str = "0.01") -> dict[str, str]:
    rows = load_script(ROOT / "docs" / "scripts" / "generate_verdicts.py").read_rows()
    wanted = (part, recipe, rule, rate)
    (row,) = [row for row in rows if (row["part"], row["recipe"], row["rule"], row["rate"]) == wanted]
    return dict(row)


def test_numbers_in_sentences_are_those_of_the_table() -> None:
    """What the page says outside of its generated parts."""
    page = " ".join((ROOT / "docs" / "use" / "threshold.md").read_text(encoding="utf-8").split())
    mean, black = find_row("mean of 9, full", "Config.best()"), find_row("mpdd/bracket_black", "Config()")
    aim, promise = (find_row("mean of 8, n32", "Config()", rule) for rule in ("robust", "guarantee"))
    for sentence in (
        f"hit {float(mean['regions_hit']):.0%} of the defect regions".replace("%", " %"),
        f"with an F1 of pixels of {float(mean['pixel_f1']):.2f}",
        f"that labels could choose has an F1 of {float(mean['best_pixel_f1']):.2f} (`Config.best()`)",
        f"`Config()` finds {black['found']} of the {black['defects']} defects of bracket_black",
        f"(image AUROC {float(black['image_auroc']):.2f})",
        f"({100 * float(promise['found']):.0f} % and {100 * float(aim['found']):.0f} %)",
        f"({100 * float(promise['false_alarms']):.1f} % and {100 * float(aim['false_alarms']):.1f} %)",
    ):
        assert sentence in page, sentence


def test_regions_are_measured_on_all_nine_parts() -> None:
    rows = load_script(ROOT / "docs" / "scripts" / "generate_verdicts.py").read_rows()
    measured = [row for row in rows if row["pixel_f1"] and (row["rule"], row["rate"]) == ("robust", "0.01")]
    for recipe in ("Config.best()", "Config()"):
        parts = [row["part"] for row in measured if row["recipe"] == recipe and "mean" not in row["part"]]
        assert len(parts) == len(set(parts)) == 9


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
