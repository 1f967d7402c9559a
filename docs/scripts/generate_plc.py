"""Write the tables of docs/use/plc.md and docs/use/line.md from the code: python docs/scripts/generate_plc.py

The registers, states, methods and keys of the file have one home each, in ``procon.line``; a test compares the pages.
"""

import csv
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path

import measured_parts

from procon.line import vision_system as vision
from procon.line.parts import CAUSES
from procon.line.registers import REGISTERS
from procon.line.settings import SETTING_TABLES, expected, keys_of

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "line.csv"
PLACES = {
    "use/plc.md": ("registers", "causes", "states", "methods", "variables", "events", "not_covered"),
    "use/line.md": ("keys", "latency"),
}
MEANINGS = {
    "": "there is a verdict",
    "image": "the image or the camera: missing, damaged, no picture",
    "model": "no model, no such job, or a model without a threshold",
    "deadline": "no result within `deadline_ms`",
    "paused": "the station is paused",
    "fault": "the station cannot work now; the reason is in the result",
    "busy": "another part was in work",
    "restart": "the station was restarted or is stopping",
    "internal": "an error of ProCon or of the device; the station starts again",
}


def main() -> None:
    """Write the pages."""
    for page in PLACES:
        (DOCS / page).write_text(render(page), encoding="utf-8")


def render(page: str) -> str:
    """A page with its tables as the code has them."""
    return measured_parts.fill(DOCS / page, "generate_plc.py", PLACES[page], section)


def section(name: str) -> str:
    """One part of a page."""
    if name == "not_covered":
        return "\n" + "\n".join(f"- {entry}" for entry in vision.NOT_COVERED) + "\n"
    if name == "latency":
        return f"\n{latency()}\n"
    tables = {
        "registers": registers,
        "causes": causes,
        "states": states,
        "methods": methods,
        "variables": variables,
        "events": events,
        "keys": keys,
    }
    return f"\n{tables[name]()}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def registers() -> str:
    """Those of a station."""
    rows = [
        (
            f"+{item.offset}" if item.words == 1 else f"+{item.offset}, +{item.offset + 1}",
            f"`{item.name}`",
            item.writer,
            item.meaning + ("; unsigned 32 bit, high word first" if item.words == 2 else ""),
        )
        for item in REGISTERS
    ]
    return table(["register", "name", "written by", "meaning"], rows)


def causes() -> str:
    """Why there is no verdict."""
    rows = [(number, f"`{cause}`" if cause else "", MEANINGS[cause]) for number, cause in enumerate(CAUSES)]
    return table(
        ["`cause`", "in results", "meaning"], [*rows, (len(CAUSES), "", "a cause that this table does not know")]
    )


def states() -> str:
    """Of both state machines."""
    rows = [
        (
            state.number,
            state.name,
            "AutomaticModeStateMachine" if state.automatic else "VisionStateMachine",
            state.meaning,
        )
        for state in vision.STATES_OF_VISION
    ]
    return table(["number", "state", "of", "meaning"], rows)


def methods() -> str:
    """All methods with their arguments."""
    rows = [
        (
            f"`{method.path}/{method.name}`",
            ", ".join(method.inputs),
            ", ".join((*method.outputs, "Error")),
            method.meaning,
        )
        for method in vision.METHODS
    ]
    errors = ", ".join(f"{number}: {meaning}" for number, meaning in vision.ERRORS.items())
    return table(["method", "takes", "gives", "meaning"], rows) + f"\n\n`Error`: {errors}."


def variables() -> str:
    """Of the last result and of the station."""
    rows = [
        (f"`{path}{item.name}`", item.kind, item.meaning)
        for path, items in (("ResultManagement/", vision.RESULT_VARIABLES), ("", vision.STATION_VARIABLES))
        for item in items
    ]
    return table(["variable", "type", "meaning"], rows)


def events() -> str:
    """All events."""
    rows = [(f"`{item.name}`", item.severity, ", ".join(item.fields) or "-", item.meaning) for item in vision.EVENTS]
    return table(["event", "severity", "own fields", "meaning"], rows)


def keys() -> str:
    """Every key of the file."""
    rows = []
    for name, made in SETTING_TABLES.items():
        for item in keys_of(made):
            default = "needed" if item.default is MISSING else "-" if item.default is None else f"`{item.default}`"
            head = "[[station]]" if name == "station" else f"[{name}]"
            rows.append((f"`{head}`", f"`{item.name}`", expected(made, item), default, item.metadata["doc"]))
    return table(["table", "key", "value", "default", "meaning"], rows)


def latency() -> str:
    """What was measured."""
    if not RESULTS.is_file():
        return "Not measured yet: `python benchmarks/line_latency.py`"
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        measured = list(csv.DictReader(stream))
    head = ["device", "model", "protocol", "stations", "stored", "latency p50 / p99 / worst, ms"]
    head += ["scoring p50 / p99", "overhead p50 / p99 / worst", "bare round trip p50 / p99", "load"]
    rows = [
        [
            row["device"],
            row["model"],
            row["protocol"],
            row["stations"],
            "yes" if row["stored"] == "True" else "no",
            " / ".join(row[f"latency_{part}_ms"] for part in ("p50", "p99", "worst")),
            " / ".join(row[f"scoring_{part}_ms"] for part in ("p50", "p99")),
            " / ".join(row[f"overhead_{part}_ms"] for part in ("p50", "p99", "worst")),
            " / ".join(row[f"bare_{part}_ms"] for part in ("p50", "p99")),
            row["load"],
        ]
        for row in measured
    ]
    return table(head, rows)


if __name__ == "__main__":
    main()
