"""The page about lessons shows what was measured."""

from tests.docs.test_pages import ROOT, load_script


def test_the_measured_part_is_that_of_the_results() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_teach.py")
    before = script.PAGE.read_text(encoding="utf-8")
    assert before == script.fill(
        script.PAGE, "generate_teach.py", ["measured"], lambda _: script.measured(script.read_rows())
    )


def test_lessons_of_one_three_and_five_examples_were_drawn_several_times() -> None:
    rows = load_script(ROOT / "docs" / "scripts" / "generate_teach.py").read_rows()
    assert {row["taught"] for row in rows} == {"0", "1", "3", "5"}
    assert all(int(row["draws"]) == 10 for row in rows if row["taught"] != "0")
