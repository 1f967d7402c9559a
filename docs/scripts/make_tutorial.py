"""Run the steps of docs/start/tutorial.md and write that page: python docs/scripts/make_tutorial.py

Each block below a ``with page.python():`` runs, and its source goes on the page with its output; each
``page.command(...)`` runs as if it had been typed. Everything on the page really happened.

The package renders the parts. Your own folders work too (good parts to fit on, further good parts, and defects if you
have some): python docs/scripts/make_tutorial.py GOOD NEW DEFECTS --output FOLDER
"""

import argparse
import contextlib
import json
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from PIL import Image
from tutorial_page import Page, draw_examples, draw_parts, table
from tutorial_parts import Tale, copy_own, render_flanges

from procon import Config, Detector, Prediction
from procon.cli.flags import SETTINGS
from procon.demo.defects import DEFECT_KINDS
from procon.limits.report import LimitsReport
from procon.model.calibration import Calibration
from procon.model.document import read_calibration, read_renderings
from procon.model.renderings import Renderings
from procon.results.evidence import color_scale
from procon.showing.painting import ColorScale
from procon.vision.images import Picture, open_image

DOCS = Path(__file__).resolve().parent.parent
EVIDENCE_WIDTH = 1000  # pixels
LIMITS_COUNT, LIMITS_SIZES = 90, "5,15,45"  # rendered defects, and their sizes in pixels

Results = dict[str, Prediction]
"""The prediction of each part, by path."""


@dataclass
class Walk:
    """What happened, for tests to check."""

    scale: ColorScale
    """The same for all pictures, so that they can be compared."""
    alarm: str = ""
    """The good part with the highest score among the flagged ones, or among all if none is flagged."""
    evidence: tuple[str, ...] = ()
    """The training parts that its patch was compared with."""
    added: tuple[str, ...] = ()
    forgotten: str = ""
    results: dict[str, Results] = field(default_factory=dict)
    """By step: the predictions of all new parts and of the forgotten one."""
    thresholds: dict[str, float] = field(default_factory=dict)
    limits: LimitsReport | None = None
    faint: dict[str, tuple[Prediction, Prediction]] = field(default_factory=dict)
    """Parts with a faint defect, before and after the first of them was taught."""
    log: tuple[str, ...] = ()
    same: bool = False
    """Whether the model in memory, the saved one, and the one that the commands made agree on every score."""


def take_walk(page: Page, config: Config, tale: Tale) -> Walk:
    """All steps, in the folder that holds ``parts``."""
    introduce(page, config, tale)
    detector = fit(page, config)
    walk = set_threshold(page, detector)
    inspect_new_parts(page, detector, walk, tale)
    ask_why(page, detector, walk)
    add(page, detector, walk)
    forget(page, detector, walk, tale)
    compare(page, walk)
    see_limits(page, walk)
    if Path("parts/faint").is_dir():
        teach(page, detector, walk)
    read_log(page, detector, walk)
    save_and_load(page, detector, walk)
    return walk


def introduce(page: Page, config: Config, tale: Tale) -> None:
    """The parts, and how to read the page."""
    page.say(
        "# One part, from the first fit to an edited memory",
        "This page takes one part through fit, threshold, a false alarm, its evidence, adding the part, forgetting "
        "another, the changed verdicts, the smallest defects it finds, and a lesson from one that it missed. "
        "`python docs/scripts/make_tutorial.py` (`make tutorial`) wrote it: all code and all commands ran in this "
        "order, and they produced the numbers, outputs and pictures. TIME and MEMORY replace values that differ from "
        "run to run; the line that names the weights in use is omitted. With other weights the numbers differ.",
        tale.parts,
    )
    folders = [path for path in Path("parts").rglob("*") if any(path.glob("*.*"))]
    groups = sorted(path for path in folders if "faint" not in path.name)
    purpose = {"parts/good": "to fit on", "parts/held-out": "good, to set the threshold"}
    counts = [
        [f"`{group}`", str(len(list(group.iterdir()))), purpose.get(str(group), "to inspect")] for group in groups
    ]
    page.say(table(["folder", "parts", "for"], counts))
    firsts = [
        (short(str(group)), [(str(min(group.iterdir())), None)]) for group in groups if str(group) != "parts/held-out"
    ]
    page.picture("parts", draw_parts(firsts, ColorScale(0, 1)), "A part of each folder.")
    page.say("```py\nfrom procon import Config, Detector\n\nconfig = " + spelled(config) + "\n```")


def fit(page: Page, config: Config) -> Detector:
    """Step 1."""
    page.say("## 1. Fit", "All you need is a folder of good parts. No defects are needed.")
    with page.python():
        detector = Detector(config).fit("parts/good")
    page.say("The same as a command, which first prints the expected time and memory:")
    page.command(f"procon fit parts/good {flags(config)} -o flange.procon")
    return detector


def set_threshold(page: Page, detector: Detector) -> Walk:
    """Step 2."""
    assert detector.calibration is not None and detector.memory is not None
    first = detector.calibration
    page.say(
        "## 2. The threshold",
        "The fit has already set a threshold. It scored each training part without its own patches, and the output "
        "above says which false-alarm rate it aims at.",
    )
    if first.spread.aside:
        odd = first.spread.aside[0]
        page.say(
            f"The output also names an odd part that is set aside: `{detector.memory.names[odd]}` scores "
            f"{first.scores[odd]:.4f}, {first.spread.deviations(first.scores[odd]):.0f} robust deviations above the "
            "median. Step 6 returns to this part."
        )
    page.say(
        "A threshold that you can defend comes from good parts that the model has not seen: with `guarantee`, its "
        "false-alarm rate is a promise. 59 parts are enough for a rate of 5 % with 95 % confidence."
    )
    with page.python():
        detector.calibrate("parts/held-out", guarantee=True)
        print(f"{detector.calibration.threshold:.4f}")
    page.command("procon threshold flange.procon --calibrate parts/held-out --guarantee")
    page.say("[Threshold](../use/threshold.md) explains these rates.")
    return Walk(color_scale(detector), thresholds={"fit": first.threshold})


def inspect_new_parts(page: Page, detector: Detector, walk: Walk, tale: Tale) -> None:
    """Step 3."""
    page.say("## 3. New parts, and a false alarm")
    with page.python():
        results = {result.source: result for result in detector.predict("parts/new")}
    page.command("procon predict flange.procon parts/new")
    walk.results["fitted"], walk.thresholds["fitted"] = results, threshold_of(detector)
    alarms = flagged_good(results)
    walk.alarm = alarms[0] if alarms else max(filter(is_good, results), key=lambda path: results[path].score)
    defects = {path: result for path, result in results.items() if not is_good(path)}
    missed = [path for path, result in defects.items() if passes(result)]
    passed = sum(result.score <= walk.thresholds["fit"] for result in defects.values())
    if defects:
        page.say(
            f"{len(defects) - len(missed)} of {len(defects)} defects are found"
            + (f"; `{missed[0]}` was missed, and step 6 shows why" if missed else "")
            + f". With the threshold of the fit, {walk.thresholds['fit']:.4f}, {passed} would have been missed."
        )
    if alarms:
        page.say(f"{len(alarms)} good parts are flagged too; `{walk.alarm}` has the highest score. {tale.alarm}")
    else:
        page.say(f"No good part is flagged. The next steps use the one with the highest score, `{walk.alarm}`.")
    kinds: dict[str, str] = {}
    for path in [walk.alarm, *results]:
        kinds.setdefault(Path(path).parent.name, path)
    columns = [
        (title(kinds[kind]), [(kinds[kind], None), (kinds[kind], results[kinds[kind]])]) for kind in sorted(kinds)
    ]
    page.picture(
        "new",
        draw_parts(columns, walk.scale),
        "New parts, and below each the same part with its heat map, score and verdict; all on one colour scale.",
    )


def ask_why(page: Page, detector: Detector, walk: Walk) -> None:
    """Step 4."""
    image = walk.alarm
    page.say("## 4. Its evidence", f"Why was it flagged? Here `image` is `{image}`.")
    with page.python():
        found = detector.explain(image)
        print(f"patch {found.box}, score {found.score:.3f}")
        for patch in found.normal_patches(3):
            print(f"{patch.weight:.1%} {patch.image} {patch.box}, distance {patch.distance:.3f}")
    page.command(f"procon explain flange.procon {image} -o evidence.png")
    page.picture(
        "evidence",
        shrink_sheet("evidence.png"),
        "The output of the command: the part with its heat map, the enlarged patch, the residual of each layer, and "
        "the normal patches it was compared with.",
    )
    page.say("[Evidence](../use/evidence.md) explains this picture.")
    walk.evidence = tuple(patch.image for patch in found.normal_patches())


def add(page: Page, detector: Detector, walk: Walk) -> None:
    """Step 5."""
    image = walk.alarm
    page.say("## 5. Adding the part", "It is a good part, so we add it to the memory. No new fit is needed.")
    with page.python():
        detector.partial_fit(image)
    page.command(f"procon add flange.procon {image}")
    look(detector, walk, "one added")
    before, after = walk.results["fitted"], walk.results["one added"]
    page.say(
        f"Its own score went from {before[image].score:.3f} to {after[image].score:.3f}, and the threshold from "
        f"{walk.thresholds['fitted']:.4f} to {walk.thresholds['one added']:.4f}."
    )
    added, alarms = [image], flagged_good(after)
    good = [path for path in after if is_good(path)]
    still = "No good part is flagged now. "
    if alarms:
        still = (
            f"{len(alarms)} good parts are still flagged, `{alarms[0]}` with {after[alarms[0]].score:.3f} "
            f"({before[alarms[0]].score:.3f} before). "
        )
    page.say(
        f"{still}One image shows the new feature at one place and in one light, and other parts differ a little. So "
        "this loop adds the flagged part with the highest score until no further part is flagged. Here `good` is the "
        f"list of the {len(good)} new parts that are known to be good, and `added` is the list of those in the memory."
    )
    with page.python():
        while True:
            results = detector.predict([path for path in good if path not in added])
            alarms = [result for result in results if result.is_anomalous]
            if not alarms:
                break
            worst = max(alarms, key=lambda result: result.score)
            detector.partial_fit(worst.source)
            added.append(worst.source)
    if len(added) > 1:
        page.command(*(f"procon add flange.procon {path}" for path in added[1:]))
    walk.added = tuple(added)
    look(detector, walk, "all added")
    last = walk.results["all added"]
    cleared = [path for path in flagged_good(before) if path not in added and passes(last[path])]
    shown = cleared[0] if cleared else image
    page.say(
        f"Good parts flagged now: {len(flagged_good(last))} of {len(good)}. {len(added)} parts were added; "
        f"{len(cleared)} that {'was' if len(cleared) == 1 else 'were'} flagged {'is' if len(cleared) == 1 else 'are'} "
        f"cleared without being added. The picture shows `{short(shown)}`, which "
        f"{'was never added' if cleared else 'was added first'}:"
    )
    steps = (
        ("fitted", "after the fit"),
        ("one added", "one part added"),
        ("all added", f"{len(added)} parts added"),
    )
    columns = [(words, [(shown, walk.results[step][shown])]) for step, words in steps]
    page.picture("added", draw_parts(columns, walk.scale), "The same part after the fit and after parts were added.")


def forget(page: Page, detector: Detector, walk: Walk, tale: Tale) -> None:
    """Step 6."""
    page.say("## 6. Forgetting another")
    missed = [path for path, result in walk.results["all added"].items() if not is_good(path) and passes(result)]
    if missed:
        page.say(f"`{missed[0]}` is a defect, and it is still called good. Something in the memory must look like it.")
    page.say(
        "Are all parts in the memory good? `suspects` ranks the training parts by how poorly the others explain them. "
        "The parts that step 5 `added` are excluded: they are rare in the memory, but known to be good."
    )
    added = walk.added
    with page.python():
        suspects = [suspect for suspect in detector.suspects() if suspect.image not in added]
        for suspect in suspects[:3]:
            print(f"{suspect.image}: {suspect.excess:.1f} deviations above the median, peak at {suspect.box}")
    walk.forgotten = suspects[0].image
    seen = ", which also appears in the picture of step 4" if walk.forgotten in walk.evidence else ""
    page.say(
        "(`procon fit --suspects list` prints the same list after a fit and writes a page of pictures.) "
        f"The first is `{walk.forgotten}`{seen}. {tale.forgotten} While it is in the memory, it counts as good, "
        "and so does everything that looks like it. Forgetting it removes every patch that came from it:"
    )
    walk.results["all added"][walk.forgotten] = detector.predict(walk.forgotten)
    with page.python():
        detector.forget(suspects[0].image)
    page.command(f"procon forget flange.procon {walk.forgotten}")
    look(detector, walk, "one forgotten")
    before, after = walk.results["all added"], walk.results["one forgotten"]
    after[walk.forgotten] = detector.predict(walk.forgotten)
    risen = sorted(after, key=lambda path: before[path].score - after[path].score)[:3]
    columns = [(title(path), [(path, before[path]), (path, after[path])]) for path in risen]
    page.say("The parts with the largest increase in score, before and after:")
    page.picture(
        "forgotten", draw_parts(columns, walk.scale), "Parts before (above) and after (below) one part was forgotten."
    )


def compare(page: Page, walk: Walk) -> None:
    """Step 7."""
    page.say("## 7. The changed verdicts")
    last = walk.results["one forgotten"]
    rows = [[f"`{short(path)}`", *(cell(results.get(path)) for results in walk.results.values())] for path in last]
    rows.append(["threshold", *(f"{walk.thresholds[step]:.3f}" for step in walk.results)])
    page.say(table(["part", *walk.results], rows))
    page.say("Bold means anomalous. A verdict changes when the score changes or when the threshold changes.")
    for done, (before, after) in (("adding", ("fitted", "all added")), ("forgetting", ("all added", "one forgotten"))):
        old, new = walk.results[before], walk.results[after]
        changed = [f"`{short(path)}`" for path in old if old[path].is_anomalous != new[path].is_anomalous]
        page.say(f"Verdicts changed by {done}: " + (f"{', '.join(changed)}." if changed else "none."))


def see_limits(page: Page, walk: Walk) -> None:
    """Step 8."""
    page.say(
        "## 8. How small a defect it finds",
        "Which defects would this model still miss? `procon limits` renders some on the training parts, each scored "
        "without its own patches, and says first what that will take. Here are few, in three sizes; without `--count` "
        "and `--sizes` there are more of both.",
    )
    page.command(f"procon limits flange.procon --count {LIMITS_COUNT} --sizes {LIMITS_SIZES} -o limits")
    walk.limits = measured = LimitsReport(*kept_limits("flange.procon"))
    page.picture(
        "limits",
        draw_examples(measured, load_good(measured)),
        "Rendered defects, enlarged: of each kind the smallest that is found, and the largest that is missed.",
    )
    page.say(
        "The folder `limits` holds a page with such pictures, a map of the places where the model is blind, and tables "
        "with intervals. `procon threshold` shows from now on what each rate finds:"
    )
    page.command("procon threshold flange.procon")
    page.say("[Limits](../use/limits.md) says what rendered defects tell about real ones, and what they do not.")


def teach(page: Page, detector: Detector, walk: Walk) -> None:
    """Step 9."""
    before = {result.source: result for result in detector.predict(sorted(map(str, Path("parts/faint").iterdir())))}
    missed = [strongest_passing(before, number) for number in ("000", "001")]
    image, other = missed
    left, top, right, bottom = box_of_mask(Path("parts/faint-masks/000.png"))
    spot = f"{left},{top},{right - left},{bottom - top}"
    page.say(
        "## 9. Teaching a missed defect",
        f"`{image}` has a bloom of rust so faint that the part passes: its score is {before[image].score:.3f}. Mark "
        "it, and the model looks for its like from now on. Nothing is trained, and the memory stays as it is. The "
        "price is told first: every training part is scored as if the lesson were accepted.",
    )
    box = (left, top, right, bottom)
    with page.python():
        lesson = detector.teach(image, box)
        for line in lesson.describe():
            print(line)
    page.command(f"procon teach flange.procon {image} --box {spot} --yes")
    after = {result.source: result for result in detector.predict(missed)}
    walk.faint = {path: (before[path], after[path]) for path in missed}
    page.say(
        f"Its score is {after[image].score:.3f} now: the part is {word_of(after[image])}. `{other}` is another part "
        f"with faint rust, at another place, and was never shown to the model: its score went from "
        f"{before[other].score:.3f} to {after[other].score:.3f}, which is {word_of(after[other])}."
    )
    columns = [(title(path), [(path, walk.faint[path][0]), (path, walk.faint[path][1])]) for path in missed]
    page.picture("taught", draw_parts(columns, walk.scale), "Both parts before (above) and after (below) the lesson.")
    page.say("`procon explain` says where a lesson decided, and shows the defect that was marked:")
    page.command(f"procon explain flange.procon {image} -o lesson.png")
    page.picture("lesson", shrink_sheet("lesson.png"), "The output of the command: below the patch, the marked defect.")
    page.say('`procon forget flange.procon "lesson 1"` takes it back. [Teach](../use/teach.md) has the rule.')


def read_log(page: Page, detector: Detector, walk: Walk) -> None:
    """Step 10."""
    page.say("## 10. The log", "The model records each change with its time.")
    with page.python():
        for change in detector.history:
            print(change)
    page.command("procon info flange.procon", until="weights  ")
    walk.log = tuple(change.what for change in detector.history)


def save_and_load(page: Page, detector: Detector, walk: Walk) -> None:
    """Step 11."""
    page.say(
        "## 11. Save and load",
        "A model is one file. A loaded model gives the same scores, and so does the model made by the commands above:",
    )
    with page.python():
        detector.save("mine.procon")
        scores = []
        for model in (detector, Detector.load("mine.procon"), Detector.load("flange.procon")):
            scores.append([result.score for result in model.predict("parts/new")])
        print(f"{len(scores[0])} parts, the same scores: {scores[0] == scores[1] == scores[2]}")
    walk.same = scores[0] == scores[1] == scores[2]
    page.say(
        "Next: [a memory you can edit](../use/memory.md), [deployment](../use/deploy.md), "
        "[the operators' page](../use/server.md)."
    )


# ---------------------------------------------------------------------------------------------------------- helpers


def kept_limits(model: str) -> tuple[Renderings, Calibration]:
    """What the last ``procon limits`` measured, and the threshold."""
    renderings, calibration = read_renderings(Path(model)), read_calibration(Path(model))
    assert renderings is not None
    assert calibration is not None
    return renderings, calibration


def load_good(limits: LimitsReport) -> list[Picture]:
    """The good images that carry the rendered defects."""
    return [open_image(host.name) for host in limits.renderings.hosts]


def strongest_passing(results: Results, number: str) -> str:
    """Of the photographs of one part the one with most of its defect that is still called good."""
    return [path for path in results if Path(path).name.startswith(f"{number}-") and passes(results[path])][-1]


def box_of_mask(path: Path) -> tuple[int, int, int, int]:
    """The box around the white pixels of a mask."""
    with Image.open(path) as mask:
        box = mask.getbbox()
    assert box is not None
    return box


def word_of(result: Prediction) -> str:
    """The verdict in a sentence."""
    return "called anomalous" if result.is_anomalous else "still called good"


def shrink_sheet(path: str) -> Image.Image:
    """A drawn page at the width of this one."""
    with Image.open(path) as sheet:
        height = round(sheet.height * EVIDENCE_WIDTH / sheet.width)
        return sheet.convert("RGB").resize((EVIDENCE_WIDTH, height), Image.Resampling.LANCZOS)


def look(detector: Detector, walk: Walk, step: str) -> None:
    """Store the present predictions of all new parts."""
    walk.results[step] = {result.source: result for result in detector.predict("parts/new")}
    walk.thresholds[step] = threshold_of(detector)


def threshold_of(detector: Detector) -> float:
    """The threshold in force."""
    assert detector.calibration is not None
    return detector.calibration.threshold


def is_good(path: str) -> bool:
    """Whether a part is known to be good, by its folder."""
    return Path(path).parent.name not in (*DEFECT_KINDS, "defect")


def passes(result: Prediction) -> bool:
    """Whether a part is called good."""
    return not result.is_anomalous


def flagged_good(results: Results) -> list[str]:
    """The false alarms, highest score first."""
    return sorted(
        (path for path, result in results.items() if is_good(path) and result.is_anomalous),
        key=lambda path: -results[path].score,
    )


def short(path: str) -> str:
    """The path below ``parts``."""
    return path.removeprefix("parts/")


def title(path: str) -> str:
    """The same without its suffix, for a picture."""
    return str(Path(short(path)).with_suffix(""))


def cell(result: Prediction | None) -> str:
    """A verdict in a table."""
    if result is None:
        return ""
    return f"**{result.score:.3f}**" if result.is_anomalous else f"{result.score:.3f}"


def spelled(config: Config) -> str:
    """The settings as Python."""
    given = {one.name: getattr(config, one.name) for one in fields(config) if getattr(config, one.name) != one.default}
    return f"Config({', '.join(f'{name}={json.dumps(value)}' for name, value in given.items())})"


def flags(config: Config) -> str:
    """The settings as flags of a command."""
    words = []
    for one in fields(config):
        value = getattr(config, one.name)
        if value != one.default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flag = f"--{one.name.replace('_', '-')}" if SETTINGS[one.name].group == "user" else f"--set {one.name}"
            words.append(f"{flag}={shlex.quote(text)}")
    return " ".join(words)


def make(output: Path, config: Config, parts: Callable[[Path], Tale]) -> Walk:
    """Run the steps in a temporary folder with the parts, and write the page and its pictures to ``output``."""
    output = output.resolve()
    page = Page(output / "images")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        walk = take_walk(page, config, parts(Path("parts")))
    page.write(output / "start" / "tutorial.md")
    return walk


def main() -> None:
    """Parse, and walk."""
    parser = argparse.ArgumentParser(description="Run the steps of docs/start/tutorial.md and write that page.")
    parser.add_argument("good", nargs="?", type=Path, help="good parts to fit on; default: rendered flanges")
    parser.add_argument("new", nargs="?", type=Path, help="further good parts")
    parser.add_argument("defects", nargs="?", type=Path, help="defects, if there are some")
    parser.add_argument("--output", type=Path, help="folder for start/tutorial.md and images/; default: docs")
    parser.add_argument("--backbone", default="dinov2-small", help="as in procon fit")
    parser.add_argument("--weights", help="as in procon fit")
    given = parser.parse_args()
    own = given.good is not None
    if own and (given.new is None or given.output is None):
        parser.error("with GOOD, a folder NEW of further good parts and an --output are needed")
    weights = str(Path(given.weights).resolve()) if given.weights else None
    parts = partial(copy_own, good=given.good, new=given.new, defects=given.defects) if own else render_flanges
    make(given.output or DOCS, Config(backbone=given.backbone, weights=weights), parts)


if __name__ == "__main__":
    main()
