"""What is killed: each scenario makes a folder, changes it, and says whether what a kill left is whole."""

import asyncio
import csv
import hashlib
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PIL import Image

from procon import Detector
from procon.cli import main
from procon.deploy import Runtime
from procon.deploy import export as exporting
from procon.files import find_partial_files
from procon.line.arrivals import Folder
from procon.line.certificates import Certificates
from procon.line.delivery import Delivery
from procon.line.outbox import Outbox
from procon.line.sinks import CsvSink
from procon.server.worker import run_fit, run_learning
from procon.workspace import find_leftovers
from tests.conftest import part_pixels, tiny_config, write_tiny_backbone
from tests.line.test_watch import watching
from tests.server.test_api import client_of, png, ready, service_of, settings

State = dict[str, str]
"""The contents of a folder: a digest for each file, by its path."""


class Scenario:
    """A change of a folder, made by one process."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared  # files that no kill may touch: weights, images, a fitted detector

    def prepare(self, folder: Path) -> None:
        """What is there before."""

    def change(self, folder: Path) -> None:
        """The change; the process may be killed anywhere in it."""
        raise NotImplementedError

    def verify(self, folder: Path, before: State, after: State) -> bool:
        """Whether the change must be made again; an AssertionError says what is not whole."""
        state = state_of(folder)
        assert_old_or_new(state, before, after)
        return state != after

    def finish(self, folder: Path, before: State, after: State) -> None:
        """After the change was made again, in full: nothing of the kill may be left."""
        assert state_of(folder) == after


def state_of(folder: Path) -> State:
    """All files but those that a killed process is documented to leave."""
    left = [*find_partial_files(folder), *find_leftovers(folder)]
    files = (path for path in folder.rglob("*") if path.is_file() and not any(path.is_relative_to(one) for one in left))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def assert_old_or_new(state: State, before: State, after: State) -> None:
    """Each file is as it was or as it will be, and none is there that is in neither."""
    for name in sorted({*state, *before, *after}):
        assert state.get(name) in (before.get(name), after.get(name)), f"{name} is neither the old nor the new one"


class Command(Scenario):
    """One run of the command line."""

    arguments: Sequence[str] = ()
    also: Sequence[str] = ()

    def prepare(self, folder: Path) -> None:
        for name in ("m.procon", *self.also):
            shutil.copyfile(self.shared / "m.procon", folder / name)

    def change(self, folder: Path) -> None:
        named = {"here": folder, "shared": self.shared, "good": self.shared / "good", "weights": self.shared / "tiny"}
        sys.argv = ["procon", *(word.format(**named) for word in self.arguments)]
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, f"exit code {stop.code}"


FIT = (
    "--backbone dinov2-custom --weights {weights} --image-size 70 --banks 2 --coreset-ratio 0.3 --set num_neighbors=3 "
)
FIT += "--set layers=-1,-3"


class Export(Command):
    """An export that replaces an earlier one."""

    arguments = ("export", "{here}/m.procon", "--to", "onnx", "--precision", "fp16", "-o", "{here}/part")

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        shutil.copytree(self.shared / "part", folder / "part")

    def change(self, folder: Path) -> None:
        with patch.object(exporting, "_resident_peak", lambda _: None):  # starts a process and writes nothing
            super().change(folder)

    def verify(self, folder: Path, before: State, after: State) -> bool:
        state = state_of(folder)
        assert state in (before, after), "the exported folder is neither the old nor the new one"
        Runtime(folder / "part")  # checks the checksums
        return True  # again in any case: the next export removes what this one left

    def finish(self, folder: Path, before: State, after: State) -> None:
        super().finish(folder, before, after)
        assert not find_leftovers(folder)


class Watch(Scenario):
    """Two images are scored and delivered to a CSV file, with an outbox."""

    def prepare(self, folder: Path) -> None:
        (folder / "inbox").mkdir()
        for number in range(2):
            shutil.copyfile(self.shared / "good" / f"00{number}.png", folder / "inbox" / f"{number}.png")

    def change(self, folder: Path) -> None:
        outbox, sink = Outbox(folder / "outbox.sqlite"), CsvSink(folder / "scores.csv")
        detector = Detector.load(self.shared / "m.procon", device="cpu")
        source = Folder(folder / "inbox", settle=0.0)
        station, delivery = watching(source, detector, outbox, [sink]), Delivery(outbox, sink, clock=lambda: 1e10)
        for _ in range(2):
            station.step()
            assert delivery.step() is None
        outbox.close()

    def verify(self, folder: Path, before: State, after: State) -> bool:
        if (folder / "scores.csv").exists():
            self._rows(folder)
        return True

    def finish(self, folder: Path, before: State, after: State) -> None:
        delivered = [row for row in self._rows(folder) if row["source"] is not None and len(row["score"] or "") > 3]
        assert {Path(row["source"]).name for row in delivered} == {"0.png", "1.png"}, "a result was lost"
        assert {row["score"] for row in delivered} == set(self.scores()), "a result was changed"
        outbox = sqlite3.connect(folder / "outbox.sqlite")
        assert outbox.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert outbox.execute("SELECT COUNT(*) FROM deliveries").fetchone() == (0,)
        outbox.close()

    def scores(self) -> list[str]:
        if not hasattr(self, "_scores"):
            detector = Detector.load(self.shared / "m.procon", device="cpu")
            images = [self.shared / "good" / f"00{number}.png" for number in range(2)]
            self._scores = [str(prediction.to_dict()["score"]) for prediction in detector.predict(images)]
        return self._scores

    def _rows(self, folder: Path) -> list[dict[str, Any]]:
        """Complete lines: a kill may leave the first part of one."""
        with (folder / "scores.csv").open(newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if row["seconds"] and row["error"] is not None]
        assert len(rows) <= 4, "a result was delivered more than twice"
        return rows


class OwnCertificate(Scenario):
    """A line with OPC UA starts for the first time: it makes its key and its certificate."""

    def change(self, folder: Path) -> None:
        asyncio.run(Certificates(folder / "opcua").renew())

    def verify(self, folder: Path, before: State, after: State) -> bool:
        return True  # each is another one

    def finish(self, folder: Path, before: State, after: State) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509 import load_der_x509_certificate

        made = Certificates(folder / "opcua")
        key = load_pem_private_key(made.key.read_bytes(), None)
        assert load_der_x509_certificate(made.certificate.read_bytes()).public_key() == key.public_key()
        assert made.key.stat().st_mode & 0o77 == 0
        assert sorted(path.name for path in made.folder.iterdir()) == ["own-key.pem", "own.der", "trusted"]


class Service(Scenario):
    """A part is scored and kept, feedback is accepted, learned and withdrawn, and a model is fitted."""

    _LOG = "acknowledged.jsonl"

    def prepare(self, folder: Path) -> None:
        (folder / "models").mkdir()
        shutil.copyfile(self.shared / "m.procon", folder / "models" / "disc.procon")

    def change(self, folder: Path) -> None:
        """Whatever the service has answered is written to a file beside the folder that is watched."""
        log = folder.with_name(f"{folder.name}-{self._LOG}")
        with self._serving(folder) as client, log.open("a", buffering=1) as acknowledged:

            def note(kind: str, answer: Any) -> Any:
                assert answer.status_code < 300, answer.text
                acknowledged.write(json.dumps([kind, answer.json()]) + "\n")
                return answer.json()

            scored = note("verdict", client.post("/v1/models/disc/predict", content=png(11, defect=True)))
            said = note("feedback", client.post(f"/v1/verdicts/{scored['id']}/feedback", json={"label": "good"}))
            images = [("images", (f"{number}.png", png(number), "image/png")) for number in range(3)]
            job = note("fit", client.post("/v1/models", data={"name": "new"}, files=images))
            _until(lambda: client.get(f"/v1/feedback/{said['id']}").json()["state"] == "learned")
            _until(lambda: client.get(f"/v1/jobs/{job['id']}").json()["state"] == "done")
            note("threshold", client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.1}))

    def verify(self, folder: Path, before: State, after: State) -> bool:
        """The next service has all that was acknowledged, and ends the work."""
        for model in (folder / "models").glob("*.procon"):
            assert Detector.load(model, device="cpu").calibration is not None
        log = folder.with_name(f"{folder.name}-{self._LOG}")
        known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        with self._serving(folder) as client:
            for kind, answer in known:
                self._check(client, kind, answer)
            _until(lambda: all(job["state"] == "done" for job in client.get("/v1/jobs").json()["jobs"]))
            assert client.post("/v1/models/disc/predict", content=png(3)).status_code == 200
            assert client.get("/readyz").json()["problems"] == []
        store = sqlite3.connect(folder / "models" / ".procon-serve" / "server.sqlite")
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.close()
        assert not find_partial_files(folder), "the next service leaves partial files"
        images = len(Detector.load(folder / "models" / "disc.procon", device="cpu").model.memory.images)
        assert images == 8 + any(kind == "feedback" for kind, _ in known) or images == 9
        log.unlink(missing_ok=True)
        return False

    @staticmethod
    def _check(client: Any, kind: str, answer: Any) -> None:
        if kind == "verdict":
            assert client.get(f"/v1/verdicts/{answer['id']}").json()["score"] == answer["score"]
            assert client.get(f"/v1/verdicts/{answer['id']}/image").status_code == 200
        elif kind == "feedback":
            _until(lambda: client.get(f"/v1/feedback/{answer['id']}").json()["state"] == "learned")
        elif kind == "fit":
            _until(lambda: client.get(f"/v1/jobs/{answer['id']}").json()["state"] == "done")
            assert client.get("/v1/models/new").status_code == 200
        else:
            stored = client.get("/v1/models/disc").json()["threshold"]
            assert stored["false_alarm_rate"] == answer["threshold"]["false_alarm_rate"]

    @contextmanager
    def _serving(self, folder: Path) -> Iterator[Any]:
        """The service, which does its jobs in this process: the shim counts them too."""

        async def run_here(_process: Any, task: dict[str, Any], _log: Path) -> None:
            (run_fit if task["kind"] == "fit" else run_learning)(task)

        with (
            patch("procon.server.process.JobProcess.run", run_here),
            patch("procon.server.worker._send", lambda **_: None),
            client_of(settings(folder / "models", self.shared / "tiny")) as client,
        ):
            service_of(client)
            yield ready(client)


class ServedFiles(Scenario):
    """A model with a past part and a training image is renamed, another is deleted, a third is sent, in the service."""

    def prepare(self, folder: Path) -> None:
        template = self.shared / "served"
        if not template.exists():
            self._prepare_once(template)
        shutil.copytree(template, folder, dirs_exist_ok=True)

    def _prepare_once(self, folder: Path) -> None:
        (folder / "models").mkdir(parents=True)
        for name in ("disc", "gone"):
            shutil.copyfile(self.shared / "m.procon", folder / "models" / f"{name}.procon")
        with self._serving(folder) as client:
            for name in ("disc", "gone"):
                answer = client.post(f"/v1/models/{name}/predict", content=png(11, defect=True))
                assert answer.status_code == 200, answer.text
        for name in ("disc", "gone"):
            images = folder / "models" / ".procon-serve" / "training" / name / "feedback"
            images.mkdir(parents=True)
            shutil.copyfile(self.shared / "extra.png", images / "extra.png")

    def change(self, folder: Path) -> None:
        with self._serving(folder) as client:
            if (folder / "models" / "disc.procon").exists():
                assert client.patch("/v1/models/disc", json={"name": "ring"}).status_code == 200
            if (folder / "models" / "gone.procon").exists():
                assert client.delete("/v1/models/gone").status_code == 204
            if not (folder / "models" / "sent.procon").exists():
                content = (self.shared / "m.procon").read_bytes()
                assert client.put("/v1/models/sent/file", content=content).status_code == 200

    def verify(self, folder: Path, before: State, after: State) -> bool:
        """Each model has its past part and its training image under one name, or is gone with them."""
        with self._serving(folder):
            pass
        models, state = folder / "models", folder / "models" / ".procon-serve"
        names = {path.stem for path in models.glob("*.procon")}
        assert len(names & {"disc", "ring"}) == 1, names
        store = sqlite3.connect(state / "server.sqlite")
        with_parts = sorted(row[0] for row in store.execute("SELECT model FROM verdicts"))
        store.close()
        assert with_parts == sorted(path.parents[1].name for path in (state / "training").rglob("*.png"))
        assert with_parts == sorted(names - {"sent"})
        assert len(list((state / "parts").rglob("*.png"))) == bool(names & {"disc", "ring"})
        if "sent" in names:
            assert (models / "sent.procon").read_bytes() == (self.shared / "m.procon").read_bytes()
        assert not find_partial_files(models) and not list((state / "changes").glob("*"))
        assert {path.name for path in state.iterdir() if path.is_dir()} <= {"changes", "jobs", "parts", "training"}
        return True

    def finish(self, folder: Path, before: State, after: State) -> None:
        assert self.verify(folder, before, after)
        assert {path.stem for path in (folder / "models").glob("*.procon")} == {"ring", "sent"}

    @contextmanager
    def _serving(self, folder: Path) -> Iterator[Any]:
        with client_of(settings(folder / "models", self.shared / "tiny")) as client:
            yield ready(client)


def _until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def _command(words: str, also: Sequence[str] = ()) -> type[Command]:
    return type("Command", (Command,), {"arguments": words.split(), "also": also})


SCENARIOS: dict[str, type[Scenario]] = {
    "fit": _command(f"fit {{good}} -o {{here}}/m.procon {FIT}"),
    "fit new": _command(f"fit {{good}} -o {{here}}/models/new.procon {FIT}"),
    "add": _command("add {here}/m.procon {shared}/extra.png"),
    "forget": _command("forget {here}/m.procon 003.png"),
    "merge": _command("merge {here}/m.procon {shared}/other.procon -o {here}/both.procon", ["both.procon"]),
    "threshold": _command("threshold {here}/m.procon --false-alarm-rate 0.05"),
    "calibrate": _command("threshold {here}/m.procon --calibrate {shared}/more"),
    "teach": _command(
        "teach {here}/m.procon {shared}/bad.png --box 30,40,20,20 --yes --force --page {here}/price.html"
    ),
    "export": Export,
    "watch": Watch,
    "certificate": OwnCertificate,
    "service": Service,
    "served files": ServedFiles,
}


def make_shared(folder: Path) -> None:
    """What all scenarios read."""
    for name, seeds in (("good", range(8)), ("more", range(20, 24)), ("others", range(30, 34))):
        (folder / name).mkdir()
        for number, seed in enumerate(seeds):
            Image.fromarray(part_pixels(seed)).save(folder / name / f"{number:03d}.png")
    Image.fromarray(part_pixels(40)).save(folder / "extra.png")
    Image.fromarray(part_pixels(41, defect=True)).save(folder / "bad.png")
    config = tiny_config(write_tiny_backbone(folder / "tiny"))
    detector = Detector(config, device="cpu").fit(folder / "good")
    detector.save(folder / "m.procon")
    Detector(config, device="cpu").fit(folder / "others").save(folder / "other.procon")
    exporting.export(detector, folder / "part", measure_memory=False)


@contextmanager
def frozen_time() -> Iterator[None]:
    """The log of a model says when it was changed; here always the same, so that files can be compared."""

    class Fixed(datetime):
        @classmethod
        def now(cls, zone: tzinfo | None = None) -> "Fixed":
            return cls(2000, 1, 1, tzinfo=zone)

    with patch("procon.model.history.datetime", Fixed):
        yield
