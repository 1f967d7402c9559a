"""Load on ``procon serve`` over loopback. Writes ``benchmarks/results/server.csv``, with a GPU ``server_gpu.csv``.

    python benchmarks/server.py --weights FILE [--device cuda] [--seconds 20] [--overload-seconds 600]
    python benchmarks/server.py --table          # only writes what was measured into docs/use/server.md

Closed loop: so many clients, each with one image at a time; one that is refused with 503 comes back after the time it
was told, and the time it waited counts. Open loop: requests leave by the clock whatever the answers do; at twice the
capacity there must be nothing but 200 and 503, and memory must stay flat. When that is over, everybody waits for the
answers that are still due, and one second after the last request left a new client must be served as before. The
yardstick is ``Detector.predict_each`` over the same files, which is what ``procon predict`` runs.
"""

import argparse
import csv
import http.client
import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import RESULTS, write_rows
from procon import Config, Detector
from procon.demo.parts import write_set

TRAIN, TEST = 32, 24
PROGRAM = "from procon.cli import main; main()"
PATH = "/v1/models/flange/predict"
IDLE_SECONDS = 20.0
PAGE = Path(__file__).parent.parent / "docs" / "use" / "server.md"
TABLES = {"server": ("server", "server_gpu"), "slow_clients": ("slow_clients",), "soak": ("soak",)}  # by script


@dataclass
class Load:
    """What clients saw."""

    seconds: float
    milliseconds: list[float] = field(default_factory=list)  # of answers with status 200
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Images a second."""
        return len(self.milliseconds) / self.seconds

    def add(self, other: "Load") -> None:
        """Join another load of the same kind."""
        self.seconds += other.seconds
        self.milliseconds += other.milliseconds
        self.statuses += other.statuses

    def at(self, share: float) -> float:
        """A quantile of the latency."""
        ordered = sorted(self.milliseconds) or [float("nan")]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0
        self.again = 1.0  # seconds after which a refused client was told to come back

    def ask(self, body: bytes) -> str:
        """The status of one prediction, or what went wrong."""
        return self.send("POST", PATH, body)

    def get(self, path: str) -> str:
        """The status of a page."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: bytes | None = None) -> str:
        """The status of a request, or what went wrong."""
        try:
            # The server closes a connection after 30 idle seconds; a client that keeps one must not use it then.
            if self._connection is None or time.perf_counter() - self._used > IDLE_SECONDS:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            self._connection.request(method, path, body, {"content-type": "image/png"})
            answer = self._connection.getresponse()
            answer.read()
            self.again, self._used = float(answer.headers.get("retry-after", "1")), time.perf_counter()
            if answer.will_close:
                self._connection = None
            return str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            self._connection = None
            return type(error).__name__


def closed(port: int, bodies: list[bytes], clients: int, seconds: float) -> Load:
    """So many clients, each asking again as soon as it has its answer."""
    load, lock, until = Load(seconds), threading.Lock(), time.perf_counter() + seconds

    def ask_again(number: int) -> None:
        client = Client(port)
        for body in itertools.islice(itertools.cycle(bodies), number, None):
            begin, status = time.perf_counter(), ""
            while status in ("", "503"):
                if time.perf_counter() >= until:
                    return
                status = client.ask(body)
                end = time.perf_counter()
                with lock:
                    load.statuses[status] += 1
                    if status == "200" and end <= until:
                        load.milliseconds.append(1000 * (end - begin))
                if status == "503":
                    time.sleep(client.again)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask_again, range(clients)))
    return load


def opened(port: int, bodies: list[bytes], rate: float, seconds: float) -> Load:
    """Requests at a fixed rate; the latency counts from when each should have left."""
    load, lock, local = Load(seconds), threading.Lock(), threading.local()
    start = time.perf_counter()

    def ask_once(number: int, due: float) -> None:
        client = getattr(local, "client", None)
        if client is None:
            client = local.client = Client(port)
        status = client.ask(bodies[number % len(bodies)])
        with lock:
            load.statuses[status] += 1
            if status == "200":
                load.milliseconds.append(1000 * (time.perf_counter() - due))

    with ThreadPoolExecutor(256) as pool:
        for number in range(int(rate * seconds)):
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(ask_once, number, due)
    load.seconds = time.perf_counter() - start  # to the last answer
    return load


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

    def peaks(self) -> list[int]:
        """The largest of every minute."""
        return [round(max(self.mib[start : start + 120])) for start in range(0, len(self.mib), 120)]


def fit_model(parts: Path, models: Path, backbone: str, weights: str, device: str = "cpu", **settings: Any) -> Path:
    """Fit the model that is served; returns its file."""
    models.mkdir()
    detector = Detector(Config(backbone=backbone, weights=weights, **settings), device=device)
    detector.fit(parts).save(models / "flange.procon")
    return models / "flange.procon"


@contextmanager
def serving(models: Path, device: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process that is ready, and its port; it is stopped at the end."""
    command = [sys.executable, "-c", PROGRAM, "serve", str(models), "--device", device, "--port", "0", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        while Client(port).get("/readyz") != "200":
            time.sleep(0.5)
        yield server, port
    finally:
        server.terminate()
        server.wait()


def yardstick(model: Path, files: list[Path], device: str, seconds: float) -> float:
    """Images a second of the detector by itself."""
    detector = Detector.load(model, device=device)
    list(detector.predict_each(files))
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        count += sum(1 for _ in detector.predict_each(files))
    return count / (time.perf_counter() - begin)


def row(what: str, load: Load, note: str = "", resident: str = "") -> dict[str, Any]:
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
        "resident_mib_by_minute": resident,
    }


def measure(port: int, pid: int, bodies: list[bytes], alone: float, given: argparse.Namespace) -> list[dict[str, Any]]:
    seconds, processes = given.seconds, given.processes
    closed(port, bodies, 1, 3)  # warm
    one = closed(port, bodies, 1, seconds)
    rows = [row("closed loop, 1 client", one, f"{one.rate / alone:.2f} of predict in a loop")]
    most = one
    for clients in given.clients:
        many = spread(processes, closed, port, bodies, clients, seconds)
        note = f"{many.rate / alone:.2f} of predict in a loop, {many.rate / one.rate:.2f} of one client"
        rows.append(row(f"closed loop, {clients} clients", many, note))
        most = max(most, many, key=lambda load: load.rate)
    for share in (0.5, 0.8):
        load = spread(processes, opened, port, bodies, share * most.rate, seconds)
        rows.append(row(f"open loop, {share:g} of capacity", load))
    if given.overload_seconds:
        rows += overload(port, pid, bodies, one, most.rate, given)
    return rows


def overload(
    port: int, pid: int, bodies: list[bytes], one: Load, capacity: float, given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Twice the capacity for a while, and what a new client finds one second after the last of it has left."""
    loads = list[Load]()

    def newcomer() -> None:
        time.sleep(given.overload_seconds + 1.0)
        loads.append(closed(port, bodies, 1, max(5.0, given.seconds)))

    later = threading.Thread(target=newcomer)
    with Memory(pid) as memory:
        later.start()
        load = spread(given.processes, opened, port, bodies, 2 * capacity, given.overload_seconds)
    later.join()
    rows = [row("open loop, 2 of capacity", load, f"{given.overload_seconds:g} s", " ".join(map(str, memory.peaks())))]
    again = loads[0]
    first = again.milliseconds[0] if again.milliseconds else float("nan")
    note = f"{again.rate / one.rate:.2f} of one client before; the first answer after {first:.0f} ms"
    rows.append(row("1 s after that, 1 client", again, note))
    return rows


def put_tables(text: str) -> str:
    """The document with what was measured in it."""
    for script, names in TABLES.items():
        begin, end = f"<!-- results of benchmarks/{script}.py -->\n", "<!-- end of results -->\n"
        tables = [table(RESULTS / f"{name}.csv") for name in names]
        body = "\n\n".join(table for table in tables if table) or "Not measured yet."
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _, new=f"{begin}\n{body}\n\n{end}": new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def write_page() -> None:
    """Write what was measured into the document."""
    PAGE.write_text(put_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def table(path: Path) -> str:
    """One file of results as Markdown."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    lines = ["| | images/s | p50, ms | p99, ms | answers | |", "|---|---|---|---|---|---|"]
    for line in rows:
        cells = [line[name] for name in ("measure", "images_per_second", "p50_ms", "p99_ms", "statuses", "note")]
        lines.append(f"| {' | '.join(cells)} |")
    resident = " ".join(line["resident_mib_by_minute"] for line in rows).split()
    of = " of the overload" if path.stem.startswith("server") else ""
    words = f"Largest resident memory in each minute{of}: {', '.join(resident)} MiB. " if resident else ""
    first = rows[0]
    where = first["cpu"] if first["device"] == "cpu" else f"{first['device']}, {first['cpu']}"
    return "\n".join([*lines, "", f"{words}{where}; {first['settings']}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="dinov2-small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--overload-seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, nargs="+", help="of the closed loops; default 4 16, on a GPU 16 32 64")
    parser.add_argument("--processes", type=int, default=None, help="of clients; default 1 on a CPU, 8 otherwise")
    parser.add_argument("--table", action="store_true", help="only write the tables of the document")
    given = parser.parse_args()
    if given.table:
        write_page()
        return
    if given.weights is None:
        parser.error("--weights is needed")
    given.processes = given.processes or (1 if given.device == "cpu" else 8)
    given.clients = given.clients or ([4, 16] if given.device == "cpu" else [16, 32, 64])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(folder / "parts", train=TRAIN, good=TEST // 2, defects_per_kind=TEST // 6, seed=7)
        model = fit_model(folder / "parts", folder / "models", given.backbone, given.weights, given.device)
        files = sorted((folder / "parts" / "test").rglob("*.png"))
        bodies = [path.read_bytes() for path in files]
        alone = yardstick(model, files, given.device, given.seconds)
        base = Load(1 / alone, [1000 / alone])
        rows = [row("predict in a loop", base) | {"p99_ms": ""}]
        with serving(model.parent, given.device) as (server, port):
            rows += measure(port, server.pid, bodies, alone, given)
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    settings = f"{given.backbone}, {TRAIN} training images, 448 px PNG, {given.seconds:g} s each; {load}"
    name = "server" if given.device == "cpu" else "server_gpu"
    print("wrote", write_rows(name, [{**line, "settings": settings} for line in rows]))
    write_page()


if __name__ == "__main__":
    main()
