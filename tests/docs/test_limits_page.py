"""The page about limits shows what was measured."""

from procon.limits.kinds import PAINTED_KINDS, RENDERED_KINDS
from tests.docs.test_pages import ROOT, load_script


def test_the_measured_part_is_that_of_the_results() -> None:
    script = load_script(ROOT / "docs" / "scripts" / "generate_limits.py")
    before = script.PAGE.read_text(encoding="utf-8")
    assert before == script.fill(
        script.PAGE, "generate_limits.py", ["measured"], lambda _: script.measured(script.read_rows())
    )
    assert len([row for row in script.read_rows() if row["real_kind"] == "all"]) == 9


def test_kinds_are_rendered_by_default_where_they_say_something_of_real_defects() -> None:
    """The lower end of the interval of the correlation over kinds, with whole parts drawn again, is above 0."""
    script = load_script(ROOT / "docs" / "scripts" / "generate_limits.py")
    kinds = [row for row in script.read_rows() if row["real_kind"] not in ("all", "")]
    says = [kind for kind in PAINTED_KINDS if script.redraw(kinds, f"rendered_{kind}")[0] > 0]
    assert tuple(says) == RENDERED_KINDS
