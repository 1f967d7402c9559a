"""Fuzz one target with atheris: ``python -m tests.fuzz.run images --seconds 900 --keep found``.

Inputs that fail are written to the folder ``--keep``, one for each place in the code; the exit code is then 1.
"""

import argparse
import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import atheris

from tests.fuzz.targets import NAMES, stored_inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail, and for the inputs that found branches")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        _fuzz(arguments, Path(scratch))


def _fuzz(arguments: argparse.Namespace, scratch: Path) -> None:
    packages = {"images": ["PIL"], "requests": ["starlette", "fastapi", "python_multipart"]}.get(arguments.target, [])
    with atheris.instrument_imports(include=["procon", *packages], enable_loader_override=False):
        from tests.fuzz.targets import find_target

        target = find_target(arguments.target)
    keep = arguments.keep or scratch / "keep"
    corpus = keep / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, data in [*target.seeds().items(), *stored_inputs(arguments.target)]:
        (corpus / f"seed-{name}").write_bytes(data)
    failures: dict[str, str] = {}
    runs, until = 0, time.monotonic() + arguments.seconds
    work = scratch / "work"
    work.mkdir()
    stack = contextlib.ExitStack()
    check = stack.enter_context(target.open(work))

    def finish() -> None:
        print(f"{arguments.target}: {runs:,} runs, {len(failures)} failures")
        for place, text in failures.items():
            print(f"--- {place}\n{text}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if failures else 0)  # libFuzzer and the threads of the service would go on

    def run(data: bytes) -> None:
        nonlocal runs
        runs += 1
        try:
            check(data)
        except Exception as error:
            place = _place_of(error)
            if place not in failures:
                failures[place] = "".join(traceback.format_exception(error))[-3000:]
                (keep / f"failed-{hashlib.sha256(place.encode()).hexdigest()[:12]}").write_bytes(data)
        if time.monotonic() > until:
            finish()

    flags = [f"-seed={arguments.seed}", "-timeout=60", "-rss_limit_mb=6000", "-max_len=4096", "-print_final_stats=1"]
    flags += [f"-artifact_prefix={keep}/", "-verbosity=1", "-reload=0"]
    warnings.simplefilter("ignore")
    atheris.Setup([sys.argv[0], *flags, str(corpus)], run)
    threading.Timer(arguments.seconds + 120, finish).start()  # one input that never ends
    atheris.Fuzz()


def _place_of(error: BaseException) -> str:
    """The kind of an error and the innermost lines of the package or of the check that it went through."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/procon/" in frame.filename or "/fuzz/" in frame.filename
    ]
    last = frames[-2:]
    return f"{type(error).__name__} at " + ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in last)


if __name__ == "__main__":
    main()
