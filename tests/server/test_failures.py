"""What breaks while the server runs: threads that end, a full disk, missing weights, signals."""

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from procon import Detector
from procon.errors import ConfigError, ProconError
from procon.server import jobs as jobs_module
from procon.server.app import create_app
from procon.server.models import Models
from procon.server.threads import guarded_thread
from tests.chromium import chromium
from tests.conftest import part_pixels
from tests.server.process import ServerProcess, serving, tiny_settings, wait_for
from tests.server.test_api import client_of, encoded, png, predict, ready, service_of, settings

# ------------------------------------------------------------------------------------------------------------- threads

_PROGRAM = """
from pathlib import Path
from procon.server import models, scheduler, store

class Broken(BaseException):
    pass

def break_method(kind, name):
    method = getattr(kind, name)
    def call(*arguments, **named):
        if Path({armed!r}).exists():
            raise Broken("oh")
        return method(*arguments, **named)
    setattr(kind, name, call)

break_method({method})
from procon.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("scheduler.Queue, 'record_time'", "the thread procon-device"),
        ("models.Models, 'scan'", "the thread procon-watch"),
        ("store.Store, 'move_job'", "the queue of fits and feedback"),
    ],
)
def test_a_background_thread_that_ends_takes_the_process_down_with_a_message(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, method: str, name: str
) -> None:
    """No thread catches this error: it stands for one that nobody thought of."""
    detector.save(tmp_path / "disc.procon")
    program = _PROGRAM.format(armed=str(tmp_path / "armed"), method=method)
    server = ServerProcess(tmp_path, *tiny_settings(tiny_backbone), program=program).wait_ready()
    with server.client() as client:
        (tmp_path / "armed").touch()
        with contextlib.suppress(httpx.HTTPError):  # it may be gone at once
            client.post("/v1/models/disc/predict", content=png(1))
            client.post("/v1/models/disc/partial_fit", files=[("images", ("a.png", png(1)))])
    assert server.process.wait(60) not in (0, -signal.SIGTERM)
    wait_for(lambda: "start it again" in "".join(server.log))
    assert f"{name} ended with Broken: oh, so the server stopped" in " ".join("".join(server.log).split())


def test_images_that_wait_when_the_device_thread_ends_are_refused(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        service = service_of(ready(client))
        broken = threading.Event()

        def fail() -> Any:
            broken.wait(10)
            raise RuntimeError("broken")

        monkeypatch.setattr(service.worker, "_next_group", fail)
        predict(client, png(1))  # the thread is inside the old call: this wakes it
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(predict(client, png(2)).status_code))
        asking.start()
        wait_for(lambda: len(service.worker._waiting) == 1)
        broken.set()
        asking.join(10)
        assert answers == [503]
        assert client.get("/readyz").status_code == 503
        assert "the thread procon-device ended with RuntimeError: broken" in str(service.failure)
        assert predict(client, png(3)).status_code == 503


def test_the_loop_of_jobs_begins_again_after_an_error_of_the_store(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector.save(tmp_path / "disc.procon")
    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.05)
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        service = service_of(ready(client))
        errors = [sqlite3.OperationalError("disk I/O error"), sqlite3.OperationalError("database or disk is full")]
        move = service.store.move_job

        def move_or_fail(*arguments: Any, **named: Any) -> bool:
            if errors:
                raise errors.pop()
            return move(*arguments, **named)

        monkeypatch.setattr(service.store, "move_job", move_or_fail)
        job = client.post("/v1/models", data={"name": "other"}, files=[("images", ("a.png", png(1)))]).json()
        wait_for(lambda: client.get(f"/v1/jobs/{job['id']}").json()["state"] in ("done", "failed"))
        assert not errors and service.failure is None


def test_a_thread_reports_any_error(caplog: pytest.LogCaptureFixture) -> None:
    crashes: list[ProconError] = []
    for error in (KeyboardInterrupt(), MemoryError("x"), GeneratorExit()):

        def run(error: BaseException = error) -> None:
            raise error

        thread = guarded_thread("name", run, crashes.append)
        thread.start()
        thread.join()
    assert [str(crash).split(",")[0] for crash in crashes] == [
        "the thread name ended with KeyboardInterrupt: ",
        "the thread name ended with MemoryError: x",
        "the thread name ended with GeneratorExit: ",
    ]


# ----------------------------------------------------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not allowed here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Use all space of a file system."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            pass
    return filler


_FULL = "the disk of the state folder is full; free some space"


@pytest.fixture
def small_client(tmp_path: Path, small_disk: Path, detector: Detector, tiny_backbone: Path) -> Iterator[TestClient]:
    """A client of a server whose state folder is on a small disk."""
    detector.save(tmp_path / "models" / "disc.procon")
    with client_of(settings(tmp_path / "models", tiny_backbone, state=small_disk / "state")) as client:
        yield ready(client)


def test_on_a_full_disk_parts_are_scored_and_keeping_them_begins_again(
    small_client: TestClient, small_disk: Path, detector: Detector
) -> None:
    service = service_of(small_client)
    assert small_client.get("/readyz").json() == {"status": "ready", "problems": []}
    first = predict(small_client, png(3, defect=True)).json()
    assert first["id"] is not None and first["not_kept"] is None
    filler = fill(small_disk)
    for seed in range(4):
        answer = predict(small_client, png(seed))
        assert answer.status_code == 200
        assert answer.json()["score"] == detector.predict(part_pixels(seed)).score
    assert answer.json()["id"] is None and answer.json()["not_kept"] == _FULL
    assert predict(small_client, png(3), "?output=overlay").headers["x-procon-not-kept"] == _FULL
    assert predict(small_client, png(3), "?keep=false").json()["not_kept"] is None
    health = small_client.get("/readyz")
    assert health.status_code == 200
    assert health.json()["problems"] == [f"scored parts are not kept for review: {_FULL}"]
    service.parts.check_storage()  # still full
    assert not service.store._rows("SELECT name FROM sqlite_master WHERE name = 'probe'")
    assert service.problems
    # What must be on the disk before its answer is refused, and nothing of it stays.
    said = small_client.post("/v1/models/disc/partial_fit", files=[("images", ("a.png", png(60)))])
    assert said.status_code == 507, said.json()
    assert said.json()["error"] == f"{_FULL}, then send this again"
    fit = small_client.post("/v1/models", data={"name": "other"}, files=[("images", ("a.png", png(1)))])
    assert fit.status_code == 507
    assert not list((small_disk / "state").rglob("*.partial"))

    filler.unlink()
    service.parts.check_storage()
    assert small_client.get("/readyz").json() == {"status": "ready", "problems": []}
    again = predict(small_client, png(77)).json()
    assert again["id"] > first["id"] and again["not_kept"] is None
    assert small_client.get(f"/v1/verdicts/{again['id']}/image").content == png(77)
    # Files and rows agree: nothing that failed left a file that no row names.
    rows = {row["digest"] for row in service.store._rows("SELECT digest FROM parts")}
    files = {path.stem for path in (small_disk / "state" / "parts").rglob("*") if path.is_file()}
    assert files == rows


@pytest.mark.browser
def test_the_page_says_that_parts_are_not_kept_and_when_that_is_over(
    tmp_path: Path, small_disk: Path, detector: Detector
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    detector.save(models / "disc.procon")
    part = {"name": "part.png", "mimeType": "image/png", "buffer": png(3, defect=True)}
    with chromium() as browser, serving(models, "--state", str(small_disk / "state")) as server:
        page = browser.new_page()
        page.goto(server.url)
        wait_for(lambda: page.input_value("#model") == "disc")
        assert page.is_hidden("#problems")
        filler = fill(small_disk)
        page.set_input_files("#files", [part])
        wait_for(lambda: page.inner_text("#learned") == f"Not kept for review: {_FULL}")
        assert "Anomalous" in page.inner_text("#verdict .word")
        wait_for(lambda: page.is_visible("#problems"))
        assert page.inner_text("#problems") == f"scored parts are not kept for review: {_FULL}"
        filler.unlink()  # the server looks for space by itself
        wait_for(lambda: page.is_hidden("#problems"))
        page.set_input_files("#files", [part])
        wait_for(lambda: page.is_enabled("#was-good"))
        assert page.inner_text("#learned").strip() == ""
        page.close()


def test_the_next_part_that_can_be_kept_ends_the_problem(small_client: TestClient, small_disk: Path) -> None:
    filler = fill(small_disk)
    assert predict(small_client, png(1)).json()["not_kept"] == _FULL
    filler.unlink()
    assert predict(small_client, png(2)).json()["not_kept"] is None
    assert small_client.get("/readyz").json()["problems"] == []


def test_a_server_starts_on_a_full_disk_that_it_used_before(
    tmp_path: Path, small_disk: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(small_disk / "disc.procon")
    chosen = settings(small_disk, tiny_backbone)
    with client_of(chosen) as client:
        predict(ready(client), png(1))
    filler = fill(small_disk)
    try:
        app = create_app(chosen)
    except ConfigError as error:  # SQLite needs a little space for its log
        assert str(error).endswith(_FULL) or "cannot be written" in str(error)
        return
    with TestClient(app, base_url="http://127.0.0.1:8321") as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert "disc cannot be loaded" in client.get("/readyz").json()["problems"][0]  # its copy finds no space
        filler.unlink()
        service = service_of(client)
        service.models._entries["disc"] = service.models._entries["disc"].__class__(error="x")  # its time has come
        service.models.scan()
        assert predict(client, png(2)).status_code == 200


def test_a_state_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path, tiny_backbone: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match=r"state: the state folder cannot be written .* check its disk"):
        create_app(settings(tmp_path, tiny_backbone, state=tmp_path / "state"))


# ------------------------------------------------------------------------------------------------------ missing weights


def test_a_model_whose_weights_are_missing_is_tried_again(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    """The weights arrive: the model is loaded at the next scan, long before the time of its next attempt."""
    weights = tmp_path / "weights"
    shutil.copytree(tiny_backbone, weights)
    models = tmp_path / "models"
    models.mkdir()
    detector.save(models / "disc.procon")
    weights.rename(tmp_path / "away")
    with client_of(replace(settings(models, tiny_backbone), weights=str(weights))) as client:
        service = service_of(ready(client))
        assert predict(client, png(1)).status_code == 409
        (problem,) = client.get("/readyz").json()["problems"]
        assert problem.startswith("the model disc cannot be loaded: ") and "the next attempt is in " in problem
        assert str(tmp_path) not in problem
        assert client.get("/v1/models/disc").json()["error"]
        service.models.scan()
        assert service.models.entries["disc"].failures == 1  # not due yet
        (tmp_path / "away").rename(weights)
        service.models.scan()
        assert client.get("/readyz").json()["problems"] == []
        assert predict(client, png(1)).status_code == 200


def test_attempts_become_rarer_and_any_error_leaves_other_models_alone(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector.save(tmp_path / "a.procon")
    detector.save(tmp_path / "b.procon")
    load, now = Models._serve_file, [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    fails = [True]

    def load_or_fail(self: Any, name: str, *arguments: Any) -> Any:
        if name == "a" and fails:
            raise RuntimeError("CUDA error: out of memory")
        return load(self, name, *arguments)

    monkeypatch.setattr(Models, "_serve_file", load_or_fail)
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        models = service_of(client).models
        wait_for(lambda: models.ready)
        assert client.post("/v1/models/b/predict", content=png(1)).status_code == 200
        waits = []
        for attempt in range(1, 9):
            entry = models.entries["a"]
            assert entry.failures == attempt
            waits.append(entry.retry_at - now[0])
            now[0] = entry.retry_at - 0.1
            models.scan()
            assert models.entries["a"] is entry
            now[0] += 0.2
            models.scan()
        assert waits == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300])
        fails.clear()
        now[0] += 301
        models.scan()
        assert client.post("/v1/models/a/predict", content=png(1)).status_code == 200


# -------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_exit_code_0_and_the_store_is_closed(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, number: int
) -> None:
    detector.save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        image = encoded(part_pixels(1).repeat(20, 0).repeat(20, 1))
        answers: list[int] = []

        def ask() -> None:
            answers.append(client.post("/v1/models/disc/predict", content=image).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: "procon_queue_images 1.0" in client.get("/metrics").text or answers)
        os.kill(server.process.pid, number)
        assert server.process.wait(30) == 0
        asking.join(10)
        assert answers == [200]
    assert "Traceback" not in "".join(server.log)
    state = tmp_path / ".procon-serve"
    assert not (state / "server.sqlite-wal").exists()  # closed: SQLite removes its log
    connection = sqlite3.connect(state / "server.sqlite")
    assert connection.execute("SELECT COUNT(*) FROM verdicts").fetchone() == (1,)
    connection.close()


def test_a_signal_ends_the_server_while_clients_trickle_and_listen(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        port = int(server.url.rsplit(":", 1)[1])
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        slow[1].sendall(b"GET / HT")
        slow[2].sendall(b"POST /v1/models/disc/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n\r\nx")
        with client.stream("GET", "/v1/events") as events:
            lines = events.iter_lines()
            next(lines)
            started = time.monotonic()
            server.process.terminate()
            list(lines)  # the stream ends by itself
        assert server.process.wait(30) == 0
        assert time.monotonic() - started < 15
        for connection in slow:
            connection.close()
