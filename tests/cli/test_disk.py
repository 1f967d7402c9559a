"""Full disks, folders that cannot be written, names that are too long: a sentence, and no partial file."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from procon import Detector
from procon.files import describe_os_error
from procon.model.storage import read_model
from tests.conftest import Run, part_pixels
from tests.disk import fill_disk, small_disk

FULL = "the disk is full; free some space or choose another place"


@pytest.fixture
def fit_flags(tiny_backbone: Path) -> list[str]:
    flags = ["--backbone", "dinov2-custom", "--weights", str(tiny_backbone), "--image-size", "70", "--banks", "2"]
    return [*flags, "--coreset-ratio", "0.3", "--set", "num_neighbors=3", "--set", "layers=-1,-3"]


Arguments = Callable[[Path, Path, Path], list[object]]
"""The arguments of a command, from a full disk with the model m.procon, the good images, and a model elsewhere."""
WRITERS: dict[str, tuple[str, Arguments]] = {
    "fit": ("new.procon", lambda disk, good, _: ["fit", good, "-o", disk / "new.procon"]),
    "fit again": ("m.procon", lambda disk, good, _: ["fit", good, "-o", disk / "m.procon"]),
    "suspects": ("m-suspects.html", lambda disk, good, _: ["fit", good, "-o", disk / "m.procon", "--suspects", "list"]),
    "shards": ("m.procon", lambda disk, good, _: ["fit", good, "-o", disk / "m.procon", "--shards", "2"]),
    "threshold": ("m.procon", lambda disk, good, _: ["threshold", disk / "m.procon", "--score", "0.3"]),
    "leave-one-out": ("m.procon", lambda disk, good, _: ["threshold", disk / "m.procon", "--leave-one-out"]),
    "forget": ("m.procon", lambda disk, good, _: ["forget", disk / "m.procon", "000.png"]),
    "add": ("m.procon", lambda disk, good, model: ["add", disk / "m.procon", model.with_name("new.png")]),
    "merge": (
        "b.procon",
        lambda disk, good, model: ["merge", model, model.with_name("o.procon"), "-o", disk / "b.procon"],
    ),
    "teach": (
        "m.procon",
        lambda disk, good, model: [
            *("teach", disk / "m.procon", model.with_name("bad.png"), "--box", "30,40,20,20", "--yes", "--force")
        ],
    ),
    "price": (
        "p.html",
        lambda disk, good, model: [
            *("teach", model, model.with_name("bad.png"), "--box", "30,40,20,20", "--yes", "--force"),
            *("--page", disk / "p.html"),
        ],
    ),
    "explain": ("e.png", lambda disk, good, model: ["explain", model, good / "000.png", "-o", disk / "e.png"]),
    "predict": ("000.png", lambda disk, good, model: ["predict", model, good, "-o", disk / "out"]),
    "coco": ("c.json", lambda disk, good, model: ["predict", model, good, "--coco", disk / "c.json"]),
    "export onnx": ("part", lambda disk, good, model: ["export", model, "--to", "onnx", "-o", disk / "part"]),
    "export openvino": ("part", lambda disk, good, model: ["export", model, "--to", "openvino", "-o", disk / "part"]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_a_sentence_and_leaves_the_old_files(
    writer: str, run: Run, detector: Detector, good_folder: Path, fit_flags: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    model = detector.save(tmp_path / "m.procon")
    Image.fromarray(part_pixels(50)).save(tmp_path / "new.png")
    Image.fromarray(part_pixels(51, defect=True)).save(tmp_path / "bad.png")
    if writer == "merge":
        (tmp_path / "others").mkdir()
        for number in range(60, 64):
            Image.fromarray(part_pixels(number)).save(tmp_path / "others" / f"{number}.png")
        Detector(detector.config, device="cpu").fit(tmp_path / "others").save(tmp_path / "o.procon")
    name, arguments = WRITERS[writer]
    with small_disk() as disk:
        kept = detector.save(disk / "m.procon").read_bytes()
        fill_disk(disk)
        given = arguments(disk, good_folder, model)
        code, _, err = run(*given, *(fit_flags if given[0] == "fit" else ()))
        assert code == 2 and "Traceback" not in err
        last = err.splitlines()[-1]
        assert last.startswith("error: ") and last.endswith(f"{name}: {FULL}"), err
        files = sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file())
        assert files == ["filler", "m.procon"]
        assert (disk / "m.procon").read_bytes() == kept
        read_model(disk / "m.procon")


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_an_export_that_half_fits_on_the_disk_is_not_left(
    runtime: str, run: Run, detector: Detector, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    model = detector.save(tmp_path / "m.procon")
    assert run("export", model, "--to", runtime, "-o", tmp_path / "whole")[0] == 0
    needed = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir())
    done = False
    for size in (needed // 2, needed, 4 * needed):
        with small_disk(str(size)) as disk:
            code, _, err = run("export", model, "--to", runtime, "-o", disk / "part")
            done = code == 0
            assert done or (code == 2 and "Traceback" not in err and f"part: {FULL}" in err), (size, err)
            assert sorted(path.name for path in disk.iterdir()) == (["part"] if done else [])
    assert done


def test_a_model_of_many_is_named_when_the_disk_is_full(
    run: Run, good_folder: Path, fit_flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "disc").symlink_to(good_folder)
    with small_disk() as disk:
        fill_disk(disk)
        code, _, err = run("fit", tmp_path / "parts", "--each", "-o", disk / "models", *fit_flags)
        assert (
            code == 2
            and "Traceback" not in err
            and "disc.procon" in err
            and "No space left" in err.replace(FULL, "No space left")
        )


LONG = "x" * 5000
EXPORT = "export {model} --to onnx -o"
COMMANDS = re.split(
    r"\s{2,}",
    f"""
    fit {LONG}                      fit {{good}} -o {LONG}                  fit {{good}} --roi {LONG}
    fit {{good}} --weights {LONG}   predict {LONG} {{good}}                 predict {{model}} {LONG}
    predict {{model}} {{good}} -o {LONG}                                    predict {{model}} {{good}} --coco {LONG}
    info {LONG}                     check {LONG}                            explain {LONG} a.png
    explain {{model}} {LONG}        explain {{model}} {{good}}/000.png -o {LONG}
    threshold {LONG}                threshold {{model}} --calibrate {LONG}  threshold {{model}} --measure {LONG}
    add {{model}} {LONG}            forget {LONG} a                         merge {{model}} {LONG} -o a
    merge {{model}} {{model}} -o {LONG}                                     export {LONG} --to onnx -o a
    {EXPORT} {LONG}                 {EXPORT} a --check-images {LONG}        {EXPORT} a --evaluate {LONG}
    {EXPORT} a --training {LONG}    demo -o {LONG} --weights {{weights}}    watch {LONG} --model a --csv b
    watch {{good}} --model {{model}} --csv {LONG}                           watch {{good}} --model {LONG} --csv b
    watch {{good}} --model {{model}} --csv b --outbox {LONG}                eval {LONG}
    report {LONG}                   figures {LONG}                          bench mvtec --root {LONG}
    reproduce main --root {LONG}    serve {LONG}                            serve {{good}} --token-file {LONG}
    """.strip(),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(word[:12] for word in command.split()))
def test_a_name_that_is_too_long_is_a_sentence(
    command: str,
    run: Run,
    detector: Detector,
    good_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = detector.save(tmp_path / "m.procon")
    named = {"good": good_folder, "model": model, "weights": tiny_backbone}
    code, _, err = run(*(word.format(**named) for word in command.split()))
    assert code == 2 and "Traceback" not in err and "error: " in err and "x" * 100 in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.procon"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.ENOENT, errno.EIO])
def test_errors_of_the_system_are_sentences(code: int) -> None:
    text = describe_os_error(OSError(code, os.strerror(code), "a\nb"))
    assert text.startswith("a\\x0ab: ") and "Errno" not in text
    assert describe_os_error(OSError(code, os.strerror(code))) == text.removeprefix("a\\x0ab: ")
    assert len(describe_os_error(OSError(code, "", "y" * 5000))) < 700


def test_a_folder_that_cannot_be_written_is_a_sentence(
    run: Run, good_folder: Path, fit_flags: list[str], tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        with small_disk() as disk:
            os.system(f"mount -o remount,ro {disk}")
            code, _, err = run("fit", good_folder, "-o", disk / "a.procon", *fit_flags)
            assert code == 2 and "is on a disk that cannot be written to; choose another place" in err
    else:
        tmp_path.chmod(0o500)
        code, _, err = run("fit", good_folder, "-o", tmp_path / "a.procon", *fit_flags)
        assert code == 2 and "permission denied; check the permissions or choose another place" in err


def test_what_a_killed_program_left_is_listed(run: Run, tmp_path: Path) -> None:
    Image.fromarray(part_pixels(0)).save(tmp_path / "a.png")
    assert run("check", tmp_path)[0] == 0
    (tmp_path / ".procon-work-abc").mkdir()
    (tmp_path / ".part.procon.abc.partial").touch()
    code, _, err = run("check", tmp_path)
    assert code == 2
    for name in (".procon-work-abc", ".part.procon.abc.partial"):
        assert f"problem: {tmp_path / name}: left by a killed program; remove it if none is writing" in err


def test_a_link_that_leads_to_itself_does_not_stop_the_check(run: Run, tmp_path: Path) -> None:
    Image.fromarray(part_pixels(0)).save(tmp_path / "a.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    code, out, err = run("check", tmp_path)
    assert code == 2 and "1 image of 80 x 96 pixels" in out, err
    assert "loop.png: is a link to a file that does not exist; remove the link or restore the file" in err
