"""Units of work, run one after the other here or many at once on a Ray cluster.

A unit is a function of this package with its arguments: a category of a benchmark, a shard of images, a part to fit. It
writes its results to files atomically, or returns them. So a unit whose worker dies is run again, and no other unit is
affected.
"""

import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from procon.errors import ConfigError, MissingExtraError, ProconError
from procon.progress import Progress

ATTEMPTS = 4  # starts of a unit; if its worker dies each time, the unit is given up
LOCAL = "local"
_POLL = 0.3  # seconds between two looks at the progress of the workers
_REPORT_EVERY = 0.2  # seconds between two reports of one worker on the same stage

WorkerProgress = Callable[[str, str, str, int, int], None]
"""Called with (worker, unit, stage, done, total). The worker is ``HOST PID``, or empty for this process."""


@dataclass(frozen=True)
class Unit:
    """A call ``function(*arguments, on_progress)``; ``function`` belongs to a module, so that workers can import it."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class UnitResult:
    """The value of a unit, or its error: one the user can fix, or that its worker died in every attempt."""

    unit: Unit
    value: Any = None
    error: str | None = None


class ThisProcess:
    """Units run one after the other in this process."""

    slots = 1

    def __init__(self, device: str = "auto") -> None:
        self.device = device

    def run(self, units: Iterable[Unit], on_progress: WorkerProgress) -> Iterator[UnitResult]:
        """Run ``units`` in their order."""
        for unit in units:
            yield UnitResult(unit, *_run_unit(unit, partial(on_progress, "", unit.name)))

    def share(self, value: Any) -> Any:
        """``value`` as an argument of many units: here the value itself."""
        return value

    def check_shared(self, folder: Path, *needed: Path) -> None:
        """Do nothing: this process sees the same files as the command."""


class Cluster:
    """Units on the workers of a Ray cluster; use as a context manager.

    ``address`` is ``local`` (a temporary cluster of this machine) or what ``ray.init`` takes: ``auto``, ``HOST:PORT``,
    ``ray://HOST:PORT``. A unit gets ``cpus`` cores and as many threads, and on a cluster with GPUs one GPU unless
    ``device`` is ``cpu``. Folders must be on storage that every machine sees under the same path.
    """

    def __init__(self, address: str = LOCAL, *, device: str = "auto", cpus: int = 1) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"with --ray, device must be auto, cpu or cuda (Ray says which GPU), got {device!r}")
        self._ray = import_ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            try:
                self._ray.init(address=address, include_dashboard=False if address == LOCAL else None,
                               log_to_driver=False, logging_level="ERROR")  # fmt: skip
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ProconError(
                    f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or use --ray local; "
                    "if it asks for a token, set RAY_AUTH_MODE=token"
                ) from None
        have = self._ray.cluster_resources()
        gpus = int(have.get("GPU", 0))
        if device == "cuda" and not gpus:
            raise ConfigError(f"device is cuda, and the Ray cluster at {address!r} has no GPU; use --device cpu")
        self.device = "cpu" if device == "cpu" or not gpus else "cuda"
        self._options = {"num_cpus": cpus, "num_gpus": 1 if self.device == "cuda" else 0}
        self.slots = sum(self._list_slots().values())
        if not self.slots:
            raise ConfigError(f"a unit takes {cpus} cores, and the Ray cluster has {have.get('CPU', 0):g}; use fewer")
        # A worker keeps its models for the next unit: by default Ray ends a worker that used a GPU.
        self._execute = self._ray.remote(max_calls=0)(_run_on_worker)
        # The board runs on the machine of the command: another machine may be lost.
        here = _on_node(self._ray.get_runtime_context().get_node_id())
        self._board = self._ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        self.repeated: list[str] = []  # units that were started again, because their worker was lost

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._ray.shutdown()

    def share(self, value: Any) -> Any:
        """``value`` as an argument of many units: in the object store, which sends it to each machine once."""
        return self._ray.put(value)

    def run(self, units: Iterable[Unit], on_progress: WorkerProgress) -> Iterator[UnitResult]:
        """Run ``units``; any number may be given, because a unit is submitted when a slot is free.

        The slot, and so the machine, is chosen here, and a unit whose worker dies is submitted again here. Ray would
        choose and repeat by itself, but it waits for minutes for an answer of a machine that has left the network.
        """
        waiting, running = iter(units), dict[Any, tuple[Unit, str]]()
        lost, attempts = list[Unit](), Counter[str]()
        try:
            while True:
                for node in self._list_free(node for _, node in running.values()):
                    unit = lost.pop() if lost else next(waiting, None)
                    if unit is None:
                        break
                    attempts[unit.name] += 1
                    running[self._submit(unit, node)] = unit, node
                if not running:
                    self._show(on_progress)
                    return
                for reference, outcome in self._wait(running):
                    unit, _ = running.pop(reference)
                    if not isinstance(outcome, Exception):
                        self._show(on_progress)
                        yield UnitResult(unit, *outcome)
                    elif attempts[unit.name] < ATTEMPTS:
                        self.repeated.append(unit.name)
                        lost.append(unit)
                    else:
                        reason = f"its worker died {ATTEMPTS} times ({type(outcome).__name__})"
                        yield UnitResult(unit, None, f"{unit.name}: {reason}")
                self._show(on_progress)
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _list_slots(self) -> dict[str, int]:
        """How many units run at the same time on each machine that is on the network, by the identifier of its node."""
        resource, share = ("GPU", 1) if self.device == "cuda" else ("CPU", self._options["num_cpus"])
        nodes = self._ray.nodes()
        return {node["NodeID"]: int(node["Resources"].get(resource, 0)) // share for node in nodes if node["Alive"]}

    def _list_free(self, busy: Iterable[str]) -> Iterator[str]:
        """A node for each free slot, those with the most free slots first."""
        free = Counter(self._list_slots())
        if not any(free.values()):
            raise ProconError("the Ray cluster has no worker left; start workers, and give the command again")
        free.subtract(busy)
        while (node := max(free, key=free.__getitem__)) and free[node] > 0:
            free[node] -= 1
            yield node

    def _submit(self, unit: Unit, node: str) -> Any:
        call = self._execute.options(**self._options, max_retries=0, name=unit.name, scheduling_strategy=_on_node(node))
        # Arguments are passed one by one: Ray replaces references by their values only at this level.
        setting = (str(Path.cwd()), self._options["num_cpus"])
        return call.remote(self._board, setting, unit.name, unit.function, *unit.arguments)

    def _wait(self, running: dict[Any, tuple[Any, str]]) -> list[tuple[Any, Any]]:
        """The tasks that have ended: their values, or the error if their worker or its machine was lost."""
        died = self._ray.exceptions
        losses = (died.WorkerCrashedError, died.NodeDiedError, died.OutOfMemoryError, died.ObjectLostError)
        ended: list[tuple[Any, Any]] = []
        for reference in self._ray.wait(list(running), num_returns=1, timeout=_POLL)[0]:
            try:
                ended.append((reference, self._ray.get(reference)))
            except (*losses, died.TaskUnschedulableError) as loss:
                ended.append((reference, loss))
        if not ended:
            alive = self._list_slots()
            for reference, (_, node) in running.items():
                if node not in alive:
                    ended.append((reference, died.NodeDiedError("it left the network")))
        return ended

    def _show(self, on_progress: WorkerProgress) -> None:
        for worker, state in self._ray.get(self._board.take_updates.remote()).items():
            on_progress(worker, *state)

    def check_shared(self, folder: Path, *needed: Path) -> None:
        """Raise an error unless every machine sees ``folder``, which will hold the results, and all of ``needed``."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".procon-shared-") as mark:
            wanted = [str(path) for path in (mark.name, *needed)]
            look = self._ray.remote(num_cpus=0, max_retries=0)(_list_unseen)
            running = {}
            for node in self._ray.nodes():
                if node["Alive"]:
                    task = look.options(scheduling_strategy=_on_node(node["NodeID"])).remote(str(Path.cwd()), wanted)
                    running[task] = node["NodeManagerHostname"], node["NodeID"]
            while running:
                for reference, unseen in self._wait(running):
                    host, _ = running.pop(reference)
                    if unseen and not isinstance(unseen, Exception):  # a machine that was lost will run no unit
                        names = ", ".join(str(folder) if path == mark.name else path for path in unseen)
                        raise ProconError(
                            f"{names}: not there on {host}; images, weights, models and results must be on storage "
                            "that every machine of the cluster sees under the same path"
                        )


def _on_node(node: str) -> Any:
    """The scheduling strategy that runs a task on one node and on no other."""
    return import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(node, soft=False)


def import_ray() -> Any:
    """Ray, or an error with the command that installs it."""
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtraError("--ray needs the ray package: pip install 'procon[ray]'") from None


Workers = ThisProcess | Cluster
"""Where units run. ``slots`` of them run at the same time, each on ``device``: ``auto``, ``cpu`` or ``cuda``."""


def collect_values(results: Iterable[UnitResult]) -> Iterator[tuple[Unit, Any]]:
    """The units with their values; the first error is raised."""
    for result in results:
        if result.error is not None:
            raise ProconError(result.error)
        yield result.unit, result.value


def split_items(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """``items`` in consecutive groups of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]


# ---------------------------------------------------------------------------------------------------------- on a worker


def _run_unit(unit: Unit, on_progress: Progress) -> tuple[Any, str | None]:
    """The value of a unit, or the error that the user can fix; any other error is raised."""
    try:
        return unit.function(*unit.arguments, on_progress), None
    except (ProconError, OSError) as error:
        return None, f"{unit.name}: {error}"


def _run_on_worker(
    board: Any, setting: tuple[str, int], name: str, function: Callable[..., Any], *arguments: Any
) -> tuple[Any, str | None]:
    """Run a unit on this worker, in the folder of the command and with that many threads, which change no result."""
    folder, threads = setting
    _enter_folder(folder)
    torch.set_num_threads(threads)
    report = _Reporter(board, f"{socket.gethostname()} {os.getpid()}", name)
    outcome = _run_unit(Unit(name, function, arguments), report)
    report("done", 1, 1)
    return outcome


class _Reporter:
    """Sends progress to the board, at most a few times a second."""

    def __init__(self, board: Any, worker: str, unit: str) -> None:
        self._board, self._worker, self._unit = board, worker, unit
        self._last = ("", 0.0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage == self._last[0] and done < total and now - self._last[1] < _REPORT_EVERY:
            return
        self._last = (stage, now)
        self._board.put.remote(self._worker, (self._unit, stage, done, total))


class _Board:
    """The latest progress of each worker; an actor, so that workers can write to it and the command can read it."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[str, str, int, int]] = {}

    def put(self, worker: str, state: tuple[str, str, int, int]) -> None:
        self._latest[worker] = state

    def take_updates(self) -> dict[str, tuple[str, str, int, int]]:
        """What is new since the last call."""
        latest, self._latest = self._latest, {}
        return latest


def _enter_folder(folder: str) -> None:
    """Enter the folder of the command, if this machine has it; if not, only absolute paths work."""
    if Path(folder).is_dir():
        os.chdir(folder)


def _list_unseen(folder: str, paths: Sequence[str]) -> list[str]:
    _enter_folder(folder)
    return [path for path in paths if not Path(path).exists()]
