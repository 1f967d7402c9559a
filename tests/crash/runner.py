"""Kill a process at each call that changes a folder: ``python -m tests.crash.runner add export --half``.

Everything is imported once; each point is a fork of this process, killed by the preloaded shim. Prints a line of JSON
for each scenario; the exit code is 1 if a kill left something that is neither the old nor the new state.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.crash.scenarios import SCENARIOS, Scenario, State, frozen_time, make_shared, state_of

_KILLED = -1


class Runner:
    """Forks that are killed."""

    def __init__(self, scratch: Path) -> None:
        self.shim = ctypes.CDLL(None)  # it is preloaded
        self.shim.crash_calls.restype = ctypes.c_long
        self.scratch = scratch
        self.log = scratch / "log"

    def fork(self, work: Callable[[], None], armed: tuple[Path, int, bool] | None = None) -> int:
        """Run ``work`` in a fork: 0 if it ended well, 1 if not, and -1 if it was killed."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with self.log.open("w") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                if armed is not None:
                    folder, at, half = armed
                    self.shim.crash_arm(os.fsencode(folder), ctypes.c_long(at), int(half))
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, f"signal {os.WTERMSIG(status)}: {self.log.read_text()}"
            return _KILLED
        return os.WEXITSTATUS(status)

    def run(self, name: str, scenario: Scenario, every: int, half: bool) -> dict[str, object]:
        """Kill ``scenario`` at every ``every``-th point; what was found."""
        started = time.monotonic()
        first = self.scratch / "first"
        scenario.prepare(_empty(first))
        before = state_of(first)
        assert self.fork(lambda: scenario.change(first)) == 0, self.log.read_text()
        after = state_of(first)
        points, failures = 0, []
        for at in range(1, 100_000, every):
            folder = self.scratch / "work"
            scenario.prepare(_empty(folder))
            ended = self.fork(lambda folder=folder: scenario.change(folder), (folder, at, half))  # type: ignore[misc]
            if ended != _KILLED:
                assert ended == 0, self.log.read_text()
                break
            points += 1
            problem = self._problem_after(scenario, folder, before, after)
            if problem:
                failures.append({"at": at, "problem": problem[-1500:]})
        assert points, f"{name} was never killed"
        seconds = round(time.monotonic() - started, 1)
        return {
            "scenario": name,
            "half": half,
            "points": points,
            "seconds": seconds,
            "failures": failures,
        }

    def _problem_after(self, scenario: Scenario, folder: Path, before: State, after: State) -> str:
        """What a kill has broken; nothing if the change can be made again, in full."""
        verdict = self.scratch / "verdict"

        def verify() -> None:
            verdict.write_text("again" if scenario.verify(folder, before, after) else "done")

        if self.fork(verify) != 0:
            return self.log.read_text()
        if verdict.read_text() == "again":
            if self.fork(lambda: scenario.change(folder)) != 0:
                return self.log.read_text()
            if self.fork(lambda: scenario.finish(folder, before, after)) != 0:
                return self.log.read_text()
        return ""


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []])
    parser.add_argument("--every", type=int, default=1, help="kill at every so many points only")
    parser.add_argument("--half", action="store_true", help="calls that write do half of it first")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name, frozen_time():
        scratch = Path(name)
        shared = scratch / "shared"
        shared.mkdir()
        runner = Runner(scratch)
        make_shared(shared)
        for chosen in arguments.scenarios or SCENARIOS:
            found = runner.run(chosen, SCENARIOS[chosen](shared), arguments.every, arguments.half)
            print(json.dumps(found), flush=True)
            failed = failed or bool(found["failures"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
