"""A long run of the service with mixed clients and a ``kill -9`` in the middle. Writes ``results/soak.csv``.

    python benchmarks/soak.py --weights FILE [--seconds 600] [--image-size 112]

Valid clients score parts of which the right score is known; damaged ones send what must be refused; slow ones trickle
(see ``crowd.py``); reviewers say what parts are, of which some are learned by a second model. After half the time the
server is killed and started again on the same port. At the end, every answer was of the right kind, every piece of
accepted feedback is still there, and memory is flat: the largest of the last third of each life is at most 10 % above
the largest of the third before.
"""

import argparse
import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crowd import slow_crowd
from environment import write_rows
from procon.demo.parts import write_set
from server import Load, Memory, fit_model, row, serving, write_page

FLATNESS = 1.10
_MODEL = "/v1/models/flange"


@dataclass
class Report:
    """What the clients saw."""

    load: Load
    wrong: list[str] = field(default_factory=list)  # answers of the wrong kind
    outcomes: Counter[str] = field(default_factory=Counter)
    feedback: dict[int, str] = field(default_factory=dict)  # label by number, as accepted
    lost: list[int] = field(default_factory=list)  # feedback that is gone after the restart
    growth: list[float] = field(default_factory=list)  # of memory, last third to the third before, by life
    peaks: list[int] = field(default_factory=list)  # MiB, by minute

    def check(self) -> None:
        """Raise an AssertionError that names what went wrong."""
        assert not self.wrong, f"{len(self.wrong)} wrong answers, such as {self.wrong[:5]}"
        assert not self.lost, f"feedback {self.lost[:5]} was accepted and is gone"
        assert self.feedback and self.load.milliseconds, "nothing was scored or reviewed"
        assert all(growth <= FLATNESS for growth in self.growth), f"memory grew: {self.growth}, {self.peaks} MiB"


class Soak:
    """Clients of all kinds at one port, until they are told to stop."""

    def __init__(self, port: int, bodies: Sequence[bytes], seconds: float) -> None:
        self.port, self.bodies = port, bodies
        self.report = Report(Load(seconds))
        self.scores: dict[int, float] = {}  # by body, from its first answer
        self.down = threading.Event()  # the server is being restarted: connections fail
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "image/png") -> tuple[int, Any]:
        """Status and JSON of one request; (0, None) while the server is down."""
        was_down = self.down.is_set()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": kind})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 503 and not answer.headers.get("retry-after"):
                self.fail(f"{method} {path}: 503 without Retry-After")
            return answer.status, json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not (was_down or self.down.is_set()):
                self.fail(f"{method} {path}: {type(error).__name__} {error}")
            time.sleep(0.2)
            return 0, None
        finally:
            connection.close()

    def fail(self, what: str) -> None:
        """Note an answer of the wrong kind."""
        with self._lock:
            self.report.wrong.append(what)

    def count(self, outcome: str) -> None:
        """Count what became of a request."""
        with self._lock:
            self.report.outcomes[outcome] += 1

    def run_valid(self, first: int) -> None:
        """Score parts; the score of a part never changes, before and after the restart."""
        number = first
        while not self.stop.is_set():
            number = (number + 1) % len(self.bodies)
            started = time.perf_counter()
            status, answer = self.ask("POST", f"{_MODEL}/predict", self.bodies[number])
            self.count(f"valid {status or 'while it was down'}")
            if status == 200:
                with self._lock:
                    self.report.load.milliseconds.append(1000 * (time.perf_counter() - started))
                    expected = self.scores.setdefault(number, answer["score"])
                if answer["score"] != expected:
                    self.fail(f"part {number} scored {answer['score']} and {expected} before")
            elif status == 503:
                time.sleep(0.3)
            elif status:
                self.fail(f"a valid part: {status} {answer}")

    def run_damaged(self) -> None:
        """Requests that must be refused, each with its status."""
        image = self.bodies[0]
        form = b'--b\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + image[:500]
        requests: list[tuple[str, str, bytes, str, tuple[int, ...]]] = [
            ("POST", f"{_MODEL}/predict", image[: len(image) // 2], "image/png", (422, 503)),
            ("POST", f"{_MODEL}/predict", b"not an image", "image/png", (422, 503)),
            ("POST", f"{_MODEL}/predict", b"", "image/png", (422, 503)),
            ("POST", f"{_MODEL}/predict", bytes(33 * 2**20), "image/png", (413,)),
            ("POST", f"{_MODEL}/predict", form, "multipart/form-data; boundary=b", (400, 422, 503)),
            ("POST", f"{_MODEL}/explain?xy=99999,1", image, "image/png", (422, 503)),
            ("POST", "/v1/models/nothing/predict", image, "image/png", (404,)),
            ("PUT", f"{_MODEL}/threshold", b'{"score": -1}', "application/json", (422,)),
            ("PUT", f"{_MODEL}/threshold", b"{", "application/json", (422,)),
            ("GET", "/v1/verdicts/999999999", b"", "text/plain", (404,)),
            ("DELETE", f"{_MODEL}/predict", b"", "text/plain", (405,)),
        ]
        while not self.stop.is_set():
            for method, path, body, kind, expected in requests:
                status, answer = self.ask(method, path, body, kind)
                self.count(f"damaged {status or 'while it was down'}")
                loading = status == 503 or (self.down.is_set() and status == 404)
                if status and status not in expected and not loading:
                    self.fail(f"{method} {path}: {status} {answer}")
                if status and set(answer) != {"error"}:
                    self.fail(f"{method} {path}: the answer is no error: {answer}")
                self.stop.wait(0.1)

    def run_reviewer(self) -> None:
        """Say what parts are; every twentieth is learned by another model."""
        number = 0
        while not self.stop.is_set():
            number += 1
            label = "good" if number % 20 == 1 else "defect"
            model = "/v1/models/learner" if label == "good" else _MODEL
            status, answer = self.ask("POST", f"{model}/predict", self.bodies[number % len(self.bodies)])
            if status == 200:
                path, said = f"/v1/verdicts/{answer['id']}/feedback", json.dumps({"label": label}).encode()
                status, answer = self.ask("POST", path, said, "application/json")
                self.count(f"feedback {status or 'while it was down'}")
                if status == 200:
                    self.report.feedback[answer["id"]] = answer["label"]
                elif status not in (0, 409):  # it may be learned at this moment
                    self.fail(f"feedback: {status} {answer}")
            self.stop.wait(0.3)

    def find_lost(self) -> None:
        """Look for every piece of accepted feedback."""
        for number, label in self.report.feedback.items():
            status, answer = self.ask("GET", f"/v1/feedback/{number}")
            if status != 200 or answer["label"] != label:
                self.report.lost.append(number)


def run_soak(models: Path, bodies: Sequence[bytes], seconds: float, slow: int, arguments: Sequence[str] = ()) -> Report:
    """Load a server with ``flange.procon`` and ``learner.procon`` in ``models``, kill it half way, and go on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    soak = Soak(port, bodies, seconds)
    clients = [*(lambda first=first: soak.run_valid(first) for first in (0, 7)), soak.run_damaged, soak.run_reviewer]
    threads = [threading.Thread(target=client, daemon=True) for client in clients]
    fixed_port, large = ("--port", str(port), *arguments), f"{_MODEL}/verdicts?limit=1000"
    soak.down.set()
    for life in (1, 2):
        with serving(models, "cpu", *fixed_port) as (server, _):
            soak.down.clear()
            for thread in threads if life == 1 else ():
                thread.start()
            with slow_crowd(port, slow, large) as outcomes, Memory(server.pid) as memory:
                time.sleep(seconds / 2)
            soak.report.outcomes.update({f"slow {kind}": count for kind, count in outcomes.items()})
            third = len(memory.mib) // 3
            if third:
                soak.report.growth.append(max(memory.mib[2 * third :]) / max(memory.mib[third : 2 * third]))
            soak.report.peaks += memory.peaks()
            if life == 1:
                soak.down.set()
                server.kill()
            else:
                soak.stop.set()
                for thread in threads:
                    thread.join(90)
                soak.find_lost()
                soak.down.set()
    return soak.report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="dinov2-small")
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--slow", type=int, default=20, help="slow clients of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(folder / "parts", train=16, good=12, defects_per_kind=4, seed=7)
        model = fit_model(
            folder / "parts", folder / "models", given.backbone, given.weights, image_size=given.image_size
        )
        (model.parent / "learner.procon").write_bytes(model.read_bytes())
        bodies = [path.read_bytes() for path in sorted((folder / "parts" / "test").rglob("*.png"))]
        report = run_soak(model.parent, bodies, given.seconds, given.slow, ("--weights", given.weights))
    outcomes = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(report.outcomes.items()))
    note = f"{len(report.wrong)} wrong answers; {len(report.lost)} of {len(report.feedback)} pieces of feedback lost; "
    note += f"memory grew by {', '.join(f'{100 * growth - 100:.1f} %' for growth in report.growth)}; {outcomes}"
    settings = f"{given.backbone} at {given.image_size} px, {given.seconds:g} s with kill -9 and a restart half way"
    settings += f"; load average {os.getloadavg()[0]:.1f} at the end"
    line = row("valid clients of the soak", report.load, note, " ".join(map(str, report.peaks)))
    print("wrote", write_rows("soak", [line | {"statuses": "", "settings": settings}]))
    write_page()
    report.check()


if __name__ == "__main__":
    main()
