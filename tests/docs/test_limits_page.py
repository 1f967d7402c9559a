"""The page about limits shows what was measured."""

from tests.docs.test_pages import ROOT, load_script


def test_the_measured_part_is_that_of_the_results() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_limits.py")
    before = script.PAGE.read_text(encoding="utf-8")
    assert before == script.fill(
        script.PAGE, "generate_limits.py", ["measured"], lambda _: script.measured(script.read_rows())
    )
    assert len([row for row in script.read_rows() if row["real_kind"] == "all"]) >= 6
