"""The measured parts of the threshold and memory pages are those of the results."""

from tests.docs.test_pages import ROOT, load_script

script = load_script(ROOT / "docs" / "scripts" / "generate_line.py")


def test_a_broken_promise_is_said_in_words() -> None:
    row = {"category": "plate", "calibration": "leave-one-out", "images": "54", "promised": "0.0182", "flagged": "9"}
    row |= {"confident": "0.054", "good": "26", "rate": "0.3462", "low": "0.1721", "high": "0.5567"}
    row |= {"defects": "71", "found": "70", "found_at_0.05": "71", "found_at_0.1": "71"}
    table, words = script.false_alarms([row])
    assert (
        "| plate | leave-one-out | 54 | 1.8 % | 5.4 % | 9 of 26 | 34.6 % | 17.2 % to 55.7 % | 70 of 71 | 71 | 71 |"
        in table
    )
    assert "above the stated rate for plate (leave-one-out, 54 images)." in " ".join(words.split())
    assert "it lies above that rate too" in " ".join(words.split())
    _, words = script.false_alarms([row | {"low": "0.03"}])
    assert "that rate too" not in words
    _, words = script.false_alarms([row | {"low": "0.01"}])
    assert words.startswith("The stated rate lies in the interval, or above it, in every row.")
