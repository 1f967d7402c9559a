"""Load on ``procon serve`` over loopback. Writes ``benchmarks/results/server.csv``.

    python benchmarks/server.py --weights FILE [--device cuda] [--seconds 20] [--overload-seconds 600]

Closed loop: so many clients, each with one request at a time. Open loop: requests leave by the clock whatever the
answers do; at twice the capacity all that may be refused is refused with 503, and memory must stay flat. The
yardstick is ``Detector.predict_each`` over the same files, which is what ``procon predict`` runs.
"""

import argparse
import contextlib
import http.client
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import write_rows
from procon import Config, Detector
from procon.parts import write_set

TRAIN, TEST = 32, 24
PROGRAM = "from procon.cli import main; main()"
PATH = "/v1/models/flange/predict"


@dataclass
class Load:
    """What clients saw."""

    seconds: float
    milliseconds: list[float] = field(default_factory=list)
    """Of answers with status 200."""
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Images a second."""
        return len(self.milliseconds) / self.seconds

    def at(self, share: float) -> float:
        """A quantile of the latency."""
        ordered = sorted(self.milliseconds) or [float("nan")]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None
        self._gone = False

    def ask(self, body: bytes) -> str:
        """The status of one prediction, or what went wrong."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            self._connection.request("POST", PATH, body, {"content-type": "image/png"})
            answer = self._connection.getresponse()
            answer.read()
            if answer.will_close:
                self._connection = None
            return str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            self._connection = None
            return "hung up" if self._gone else type(error).__name__

    def hang_up(self) -> None:
        """Leave, also from another thread and in the middle of a question."""
        self._gone, connection = True, self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def closed(port: int, bodies: list[bytes], clients: int, seconds: float) -> Load:
    """So many clients, each asking again as soon as it has its answer."""
    load, lock, until = Load(seconds), threading.Lock(), time.perf_counter() + seconds

    def one(number: int) -> None:
        client = Client(port)
        for body in itertools.islice(itertools.cycle(bodies), number, None):
            begin = time.perf_counter()
            if begin >= until:
                return
            status = client.ask(body)
            end = time.perf_counter()
            with lock:
                load.statuses[status] += 1
                if status == "200" and end <= until:
                    load.milliseconds.append(1000 * (end - begin))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(clients)))
    return load


def opened(port: int, bodies: list[bytes], rate: float, seconds: float, leave: bool = False) -> Load:
    """Requests at a fixed rate; the latency counts from when each should have left.

    With ``leave`` the clients do not wait for their last answers: they hang up when the time is over.
    """
    load, lock = Load(seconds), threading.Lock()
    local, clients = threading.local(), list[Client]()
    start = time.perf_counter()

    def one(number: int, due: float) -> None:
        client = getattr(local, "client", None)
        if client is None:
            client = local.client = Client(port)
            clients.append(client)
        status = client.ask(bodies[number % len(bodies)])
        with lock:
            load.statuses[status] += 1
            if status == "200":
                load.milliseconds.append(1000 * (time.perf_counter() - due))

    with ThreadPoolExecutor(256) as pool:
        for number in range(int(rate * seconds)):
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(one, number, due)
        if leave:
            pool.shutdown(wait=False, cancel_futures=True)
            for client in clients:
                client.hang_up()
    load.seconds = time.perf_counter() - start  # to the last answer
    return load


def overload(port: int, bodies: list[bytes], rate: float, seconds: float) -> Load:
    """An open loop whose clients hang up at the end."""
    return opened(port, bodies, rate, seconds, leave=True)


def spread(processes: int, work: Any, port: int, bodies: list[bytes], amount: float, seconds: float) -> Load:
    """The same from several processes at once: one cannot ask a GPU fast enough."""
    if processes == 1:
        return work(port, bodies, amount, seconds)  # type: ignore[no-any-return]
    count = min(processes, int(amount)) if work is closed else processes
    share = amount / count if work is not closed else max(1, int(amount) // count)
    total = Load(seconds)
    with ProcessPoolExecutor(count) as pool:
        for load in pool.map(work, *zip(*[(port, bodies, share, seconds)] * count, strict=True)):
            total.milliseconds += load.milliseconds
            total.statuses += load.statuses
    return total


class Memory:
    """Resident memory of a process, looked at every half second."""

    def __init__(self, pid: int) -> None:
        self._pid, self.mib, self._stop = pid, list[float](), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            text = Path(f"/proc/{self._pid}/status").read_text()
            (line,) = [line for line in text.splitlines() if line.startswith("VmRSS")]
            self.mib.append(int(line.split()[1]) / 1024)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def part(self, begin: float, end: float) -> float:
        """The mean over a part of the time."""
        chosen = self.mib[int(begin * len(self.mib)) : max(1, int(end * len(self.mib)))] or self.mib
        return sum(chosen) / len(chosen)


def yardstick(model: Path, files: list[Path], device: str, seconds: float) -> float:
    """Images a second of the detector by itself."""
    detector = Detector.load(model, device=device)
    list(detector.predict_each(files))
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        count += sum(1 for _ in detector.predict_each(files))
    return count / (time.perf_counter() - begin)


def row(what: str, load: Load, note: str = "") -> dict[str, Any]:
    statuses = " ".join(f"{status}:{count}" for status, count in sorted(load.statuses.items()))
    print(
        f"{what:28} {load.rate:8.2f}/s  p50 {load.at(0.5):8.1f} ms  p99 {load.at(0.99):8.1f} ms  {statuses}  {note}",
        flush=True,
    )
    return {
        "measure": what,
        "images_per_second": round(load.rate, 3),
        "p50_ms": round(load.at(0.5), 1),
        "p99_ms": round(load.at(0.99), 1),
        "statuses": statuses,
        "note": note,
    }


def measure(port: int, pid: int, bodies: list[bytes], alone: float, given: argparse.Namespace) -> list[dict[str, Any]]:
    seconds, processes = given.seconds, given.processes
    closed(port, bodies, 1, 3)  # warm
    one = closed(port, bodies, 1, seconds)
    rows = [row("closed loop, 1 client", one, f"{one.rate / alone:.2f} of predict in a loop")]
    many = one
    for clients in (4, 16) if given.device == "cpu" else (4, 16, 64):
        many = spread(processes, closed, port, bodies, clients, seconds)
        note = f"{many.rate / alone:.2f} of predict in a loop, {many.rate / one.rate:.2f} of one client"
        rows.append(row(f"closed loop, {clients} clients", many, note))
    for share in (0.5, 0.8):
        load = spread(processes, opened, port, bodies, share * many.rate, seconds)
        rows.append(row(f"open loop, {share:g} of capacity", load))
    with Memory(pid) as memory:
        load = spread(processes, overload, port, bodies, 2 * many.rate, given.overload_seconds)
    time.sleep(1)
    again = closed(port, bodies, 1, max(5.0, seconds))
    early, late = memory.part(0.1, 0.3), memory.part(0.8, 1.0)
    note = f"{given.overload_seconds:g} s; resident {early:.0f} MiB in the second tenth, {late:.0f} MiB at the end"
    rows.append(row("open loop, 2 of capacity", load, note))
    first = again.milliseconds[0] if again.milliseconds else float("nan")
    note = f"{again.rate / one.rate:.2f} of one client before; the first answer after {first:.0f} ms"
    rows.append(row("1 s after that, 1 client", again, note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="dinov2-small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--overload-seconds", type=float, default=600)
    parser.add_argument("--queue", type=int, default=32, help="of the server")
    parser.add_argument("--processes", type=int, default=None, help="of clients; default 1 on a CPU, 4 otherwise")
    given = parser.parse_args()
    given.processes = given.processes or (1 if given.device == "cpu" else 4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(folder / "parts", train=TRAIN, good=TEST // 2, defects_per_kind=TEST // 6, seed=7)
        (folder / "models").mkdir()
        model = folder / "models" / "flange.procon"
        detector = Detector(Config(backbone=given.backbone, weights=given.weights), device=given.device)
        detector.fit(folder / "parts").save(model)
        files = sorted((folder / "parts" / "test").rglob("*.png"))
        bodies = [path.read_bytes() for path in files]
        alone = yardstick(model, files, given.device, given.seconds)
        base = Load(1.0, [1000 / alone])
        rows = [row("predict in a loop", base) | {"images_per_second": round(alone, 3), "p99_ms": ""}]
        del detector
        command = [sys.executable, "-c", PROGRAM, "serve", str(model.parent), "--port", "0", "--device", given.device]
        command += ["--queue", str(given.queue)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            while Client(port).ask(bodies[0]) != "200":
                time.sleep(0.5)
            rows += measure(port, server.pid, bodies, alone, given)
        finally:
            server.terminate()
            server.wait()
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    settings = f"{given.backbone}, {TRAIN} training images, 448 px PNG, {given.seconds:g} s each; {load}"
    print("wrote", write_rows("server", [{**one, "settings": settings} for one in rows]))


if __name__ == "__main__":
    main()
