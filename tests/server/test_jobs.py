"""Fits and feedback in the background, and what a crash leaves of them."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from procon import Detector
from procon.model.document import read_calibration
from procon.server.learning import keep_threshold, write_threshold
from procon.server.process import JobError
from procon.server.store import Store
from procon.server.worker import run_fit
from tests.conftest import part_pixels, tiny_config
from tests.server.process import ServerProcess, serving, tiny_settings, wait_for
from tests.server.test_api import client_of, png, predict, ready, service_of, settings


@pytest.fixture
def client(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> Iterator[TestClient]:
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        yield ready(client)


def images(count: int, start: int = 100) -> list[Any]:
    return [("images", (f"part {seed}.png", png(seed))) for seed in range(start, start + count)]


def test_a_fit_and_what_is_learned(client: TestClient, tmp_path: Path) -> None:
    """Both in one test: each needs a process of its own, and starting one is what takes the time."""
    queued = client.post("/v1/models", data={"name": "other", "false_alarm_rate": "0.2"}, files=images(6))
    assert queued.status_code == 202
    job = queued.json()
    assert (job["kind"], job["model"], job["images"]) == ("fit", "other", 6)
    again = client.post("/v1/models", data={"name": "other"}, files=images(6))
    assert again.status_code == 409 and "is being fitted" in again.json()["error"]

    flagged = predict(client, png(3, defect=True)).json()
    said = client.post(f"/v1/verdicts/{flagged['id']}/feedback", json={"label": "good"}).json()
    assert said["state"] == "pending" and said["score_before"] == flagged["score"]
    held = tmp_path / ".procon-serve" / "training" / "disc" / "feedback"
    assert [path.read_bytes() for path in held.iterdir()] == [png(3, defect=True)]

    with client.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    seen = [json.loads(line) for line in lines]
    assert seen[-1]["state"] == "done"
    assert {"reading images", "selecting anchors", "calibrating"} & {event["stage"] for event in seen}
    fitted = client.get("/v1/models/other").json()
    assert fitted["images"] == 6 and fitted["threshold"]["false_alarm_rate"] == 0.2
    answer = client.post("/v1/models/other/explain", content=png(3, defect=True)).json()
    assert all(patch["picture"] for patch in answer["normal_patches"])
    assert answer["normal_patches"][0]["image"].startswith("000")
    taken = client.post("/v1/models", data={"name": "other"}, files=images(2))
    assert taken.status_code == 409 and "there is a model called other" in taken.json()["error"]

    learned = wait_for(lambda: (row := client.get(f"/v1/feedback/{said['id']}").json())["state"] != "pending" and row)
    assert learned["state"] == "learned" and learned["score_after"] < learned["score_before"]
    assert client.get("/v1/models/disc").json()["images"] == 9
    after = predict(client, png(3, defect=True)).json()
    assert after["score"] == learned["score_after"]
    assert client.get("/v1/models/disc").json()["history"][-1]["what"] == "added"
    # Saying it again changes nothing and starts nothing.
    same = client.post(f"/v1/verdicts/{after['id']}/feedback", json={"label": "good"}).json()
    assert same["id"] == said["id"] and same["state"] == "learned"
    refused = client.post(f"/v1/verdicts/{after['id']}/feedback", json={"label": "defect"})
    assert refused.status_code == 409

    # And back: the memory is what it was, the part waits again, and its copy is gone.
    taken = client.delete(f"/v1/feedback/{said['id']}").json()
    assert taken["state"] == "forgetting"
    assert client.delete(f"/v1/feedback/{said['id']}").status_code == 409
    assert client.post(f"/v1/verdicts/{after['id']}/feedback", json={"label": "good"}).status_code == 409
    wait_for(lambda: client.get(f"/v1/feedback/{said['id']}").status_code == 404)
    model = client.get("/v1/models/disc").json()
    assert model["images"] == 8 and model["history"][-1]["what"] == "forgot"
    above = [answer["score"] > model["threshold"]["score"] for answer in (flagged, after)]  # it was scored twice
    assert above[0] and model["waiting"] == sum(above)
    assert predict(client, png(3, defect=True)).json()["score"] == flagged["score"]
    assert not list(held.iterdir())
    assert client.get(f"/v1/verdicts/{flagged['id']}").json()["label"] is None


def test_a_part_called_defective_leaves_the_queue_and_is_not_learned(client: TestClient) -> None:
    flagged = predict(client, png(3, defect=True)).json()
    said = client.post(f"/v1/verdicts/{flagged['id']}/feedback", json={"label": "defect"}).json()
    assert said["state"] == "noted"
    assert client.get("/v1/models/disc/verdicts?waiting=true").json() == {"verdicts": []}
    assert client.get("/v1/jobs").json() == {"jobs": []}


def test_what_was_said_can_be_taken_back(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it was learned, while it is, and when taking it back fails."""
    service, number = service_of(client), predict(client, png(3, defect=True)).json()["id"]
    tasks: list[dict[str, Any]] = []
    fails = ["the disk is full"]

    async def record(_number: int, task: dict[str, Any]) -> None:
        tasks.append(task)
        if task["forget"] and fails:
            raise JobError(fails.pop())

    monkeypatch.setattr(service.jobs, "_run_process", record)
    noted = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "defect"}).json()
    assert client.delete(f"/v1/feedback/{noted['id']}").json()["state"] == "withdrawn"
    assert client.delete(f"/v1/feedback/{noted['id']}").status_code == 404
    (waiting,) = client.get("/v1/models/disc/verdicts?waiting=true").json()["verdicts"]
    assert (waiting["id"], waiting["label"]) == (number, None)

    said = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "good"}).json()["id"]
    wait_for(lambda: client.get(f"/v1/feedback/{said}").json()["state"] == "learned")
    assert client.delete(f"/v1/feedback/{said}").json()["state"] == "forgetting"
    row = wait_for(lambda: (row := client.get(f"/v1/feedback/{said}").json())["state"] != "forgetting" and row)
    assert (row["state"], row["reason"]) == ("learned", "it could not be taken back: the disk is full")
    client.delete(f"/v1/feedback/{said}")
    wait_for(lambda: client.get(f"/v1/feedback/{said}").status_code == 404)
    assert [(len(task["images"]), len(task["forget"])) for task in tasks] == [(1, 0), (0, 1), (0, 1)]


def test_feedback_taken_back_while_it_is_learned_is_forgotten_next(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, number = service_of(client), predict(client, png(3, defect=True)).json()["id"]
    tasks: list[dict[str, Any]] = []
    entered, go = threading.Event(), threading.Event()

    async def record(_number: int, task: dict[str, Any]) -> None:
        tasks.append(task)
        entered.set()
        await asyncio.to_thread(go.wait, 20)

    monkeypatch.setattr(service.jobs, "_run_process", record)
    said = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "good"}).json()["id"]
    assert entered.wait(20)
    assert client.delete(f"/v1/feedback/{said}").json()["state"] == "forgetting"
    go.set()
    wait_for(lambda: client.get(f"/v1/feedback/{said}").status_code == 404)
    assert [(len(task["images"]), len(task["forget"])) for task in tasks] == [(1, 0), (0, 1)]


def test_only_images_that_came_as_feedback_are_forgotten(
    tmp_path: Path, detector: Detector, good_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody calls a training image good: it is not added, and taking that back must not remove it."""
    from procon.server.worker import run_learning

    model, output = tmp_path / "disc.procon", tmp_path / "out.procon"
    detector.save(model)
    place = tmp_path / "feedback"
    place.mkdir()
    known, new = place / "000.png", place / "new.png"
    known.write_bytes((good_folder / "000.png").read_bytes())
    new.write_bytes(png(50))
    task = {"model": str(model), "weights": None, "training": None, "device": "cpu", "output": str(output)}
    assert run_learning({**task, "images": [str(known), str(new)], "forget": []}) == (1, 0)
    grown = {**task, "model": str(output), "output": str(tmp_path / "back.procon")}
    assert run_learning({**grown, "images": [], "forget": [str(known)]}) == (0, 0)
    moved = tmp_path / "moved" / "feedback"  # the state folder may lie elsewhere by now
    assert run_learning({**grown, "images": [], "forget": [str(moved / "new.png")]}) == (0, 1)
    back = Detector.load(tmp_path / "back.procon", device="cpu")
    assert back.memory is not None and detector.memory is not None
    assert back.memory.names == detector.memory.names


def test_a_fit_takes_the_shape_of_its_images(tiny_backbone: Path, tmp_path: Path) -> None:
    paths = []
    for seed in range(6):
        paths.append(tmp_path / f"{seed}.png")
        Image.fromarray(part_pixels(seed)).resize((240, 60)).save(paths[-1])
    config = tiny_config(tiny_backbone, image_size="auto", patch_budget=36).to_dict()
    task = {"images": [str(path) for path in paths], "config": json.loads(json.dumps(config)), "device": "cpu"}
    run_fit({**task, "output": str(tmp_path / "part.procon")})
    assert Detector.load(tmp_path / "part.procon", device="cpu").config.image_size == (42, 168)


def test_a_fit_can_be_cancelled_and_leaves_nothing(client: TestClient, tmp_path: Path) -> None:
    job = client.post("/v1/models", data={"name": "other"}, files=images(3)).json()
    cancelled = client.post(f"/v1/jobs/{job['id']}/cancel").json()
    assert cancelled["state"] == "cancelled"
    assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 409
    wait_for(lambda: service_of(client).jobs._running is None)
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
    assert not (tmp_path / "other.procon").exists()
    assert not list((tmp_path / ".procon-serve" / "training").rglob("*.png"))


@pytest.mark.parametrize(
    ("data", "files", "status", "words"),
    [
        ({"name": "../x"}, images(1), 422, "a model name must have"),
        ({"name": "ok"}, [], 422, "the form must have at least one file called 'images'"),
        ({"name": "ok", "false_alarm_rate": "2"}, images(1), 422, "false_alarm_rate must be a number above 0"),
        ({"name": "ok", "replace": "maybe"}, images(1), 422, "replace must be true or false, got 'maybe'"),
        ({"name": "ok"}, [*images(2), ("images", ("x.png", b"no"))], 422, "x.png: unsupported image format"),
        ({"name": "ok"}, [*images(1), ("images", ("half.png", png(1)[:3000]))], 422, "half.png: the image cannot be"),
    ],
)
def test_a_fit_that_cannot_work_is_refused_whole(
    client: TestClient, tmp_path: Path, data: dict[str, str], files: list[Any], status: int, words: str
) -> None:
    form = files or [("nothing", ("", b""))]
    answer = client.post("/v1/models", data=data, files=form)
    assert answer.status_code == status and words in answer.json()["error"]
    assert client.get("/v1/jobs").json() == {"jobs": []}
    assert not list((tmp_path / ".procon-serve").rglob("*.png"))


def test_a_truncated_form_is_refused(client: TestClient, tmp_path: Path) -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="images"; filename="a.png"\r\n\r\n' + png(1)[:500]
    for path in ("/v1/models", "/v1/models/disc/predict", "/v1/models/disc/partial_fit"):
        answer = client.post(path, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
        assert answer.status_code in (400, 422), path
    assert not list((tmp_path / ".procon-serve").rglob("*.png"))


def test_feedback_that_fails_says_why_and_can_be_repeated(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_of(client)

    async def fails(_number: int, _task: dict[str, Any]) -> None:
        raise JobError("the banks are full: /srv/models/disc.procon")

    monkeypatch.setattr(service.jobs, "_run_process", fails)
    accepted = client.post("/v1/models/disc/partial_fit", files=images(1)).json()["feedback"]
    number = accepted[0]["id"]
    row = wait_for(lambda: (row := client.get(f"/v1/feedback/{number}").json())["state"] != "pending" and row)
    assert (row["state"], row["reason"]) == ("failed", "the banks are full: disc.procon")
    again = client.post("/v1/models/disc/partial_fit", files=images(1)).json()["feedback"]
    assert again[0]["id"] == number and again[0]["state"] == "pending"


def test_a_threshold_set_while_something_was_learned_is_kept(tmp_path: Path, detector: Detector) -> None:
    live, result = tmp_path / "live.procon", tmp_path / "result.procon"
    detector.save(live)
    detector.save(result)
    before = detector.calibration
    assert before is not None
    keep_threshold(live, result, before)
    assert Detector.load(result, device="cpu").calibration == before
    changed = Detector.load(live, device="cpu")
    changed.set_threshold(0.75).save(live)
    keep_threshold(live, result, before)
    loaded = Detector.load(result, device="cpu").calibration
    assert loaded is not None and loaded.threshold == 0.75
    by_hand = read_calibration(live)
    assert by_hand is not None
    write_threshold(live, by_hand, by_hand.at_rate(0.01, "guarantee"))
    keep_threshold(live, result, by_hand)
    loaded = read_calibration(result)
    assert loaded is not None and (loaded.rule, loaded.fixed) == ("guarantee", None)
    write_threshold(live, loaded, loaded.at_rate(0.01, "robust"))
    keep_threshold(live, result, loaded)
    changed_rule = read_calibration(result)
    assert changed_rule is not None and changed_rule.rule == "robust"


# ------------------------------------------------------------------------------------------------------------- crashes

_WRITER = """
import sys
from pathlib import Path
from procon.server.store import Store
store = Store(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    store.add_feedback("disc", "good", f"digest {number}", Path("a.png"), None, None)
    print(number, flush=True)
"""


def test_accepted_feedback_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    accepted = 20 + len(writer.stdout.read().split())
    writer.wait()
    store = Store(path)
    kept = {row["digest"] for row in store.feedback_in("pending")}
    store.close()
    assert {f"digest {number}" for number in range(1, accepted + 1)} <= kept
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_jobs_of_a_server_that_died_are_taken_up(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    """Each state a crash can leave: running, too often, finished but not moved, and an upload without a job."""
    state = tmp_path / ".procon-serve"
    store = Store(state / "server.sqlite")
    numbers = {}
    for name, place, attempts in (("again", "running", 1), ("often", "running", 3), ("moved", "finishing", 1)):
        folder = state / "training" / name / "fit-1"
        folder.mkdir(parents=True)
        (folder / "0000-a.png").write_bytes(png(1))
        number = store.add_job("fit", name, {"folder": f"{name}/fit-1", "images": [], "config": {}, "replace": False})
        for _ in range(attempts):
            store.move_job(number, place, attempt=True)
        numbers[name] = number
    (state / "jobs").mkdir()
    detector.save(state / "jobs" / f"{numbers['moved']}.procon")
    orphan = state / "training" / "other" / "fit-2"
    orphan.mkdir(parents=True)
    (tmp_path / ".x.procon.abc.partial").write_bytes(b"draft")
    store.close()
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        ready(client)
        service_of(client).models.scan()
        jobs = {job["model"]: job for job in client.get("/v1/jobs").json()["jobs"]}
        assert jobs["again"]["state"] in ("queued", "running", "failed")  # it has no images, so it then fails
        assert (jobs["often"]["state"], jobs["often"]["reason"]) == (
            "failed",
            "the server ended 3 times while this ran",
        )
        assert jobs["moved"]["state"] == "done"
        assert client.post("/v1/models/moved/predict", content=png(1)).status_code == 200
        client.post(f"/v1/jobs/{numbers['again']}/cancel")
    assert not orphan.exists() and not (tmp_path / ".x.procon.abc.partial").exists()


def test_verdicts_are_pruned_by_age_and_size(tmp_path: Path) -> None:
    store = Store(tmp_path / "server.sqlite")
    for number in range(6):
        verdict = {"model": "m", "revision": "r", "name": "n", "digest": f"{number % 4}", "width": 1, "height": 1}
        store.add_verdict({**verdict, "score": 0.5, "regions": [], "thumbnail": b""}, (".png", 100))
    assert store.prune(250, 3) == [("2", ".png"), ("3", ".png")]  # 0 and 1 came again later
    assert [row["id"] for row in store.verdicts("m", 10)] == [6, 5, 4]
    assert [row["has_image"] for row in store.verdicts("m", 10)] == [True, True, False]
    store.close()


# ---------------------------------------------------------------------------------------------------- the real process


@pytest.mark.slow
def test_kill_9_loses_no_feedback_and_leaves_no_half_model(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    server = ServerProcess(tmp_path, *tiny_settings(tiny_backbone)).wait_ready()
    with server.client() as client:
        number = client.post("/v1/models/disc/predict", content=png(3, defect=True)).json()["id"]
        said = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "good"}).json()
        job = client.post("/v1/models", data={"name": "other"}, files=images(6)).json()
    server.kill()
    Detector.load(tmp_path / "disc.procon", device="cpu")
    for _ in range(2):  # again, in the middle of the work it took up
        server = ServerProcess(tmp_path, *tiny_settings(tiny_backbone)).wait_ready()
        with server.client() as client:
            wait_for(lambda: any(one["state"] == "running" for one in client.get("/v1/jobs").json()["jobs"]))
        server.kill()
        assert Detector.load(tmp_path / "disc.procon", device="cpu").memory is not None
    with serving(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        wait_for(lambda: client.get(f"/v1/feedback/{said['id']}").json()["state"] == "learned")
        wait_for(lambda: client.get(f"/v1/jobs/{job['id']}").json()["state"] == "done")
        assert {model["name"]: model["images"] for model in client.get("/v1/models").json()["models"]} == {
            "disc": 9,
            "other": 6,
        }


@pytest.mark.slow
def test_a_graceful_stop_finishes_what_is_in_flight(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    detector.save(tmp_path / "disc.procon")
    with ServerProcess(tmp_path, *tiny_settings(tiny_backbone)) as server, server.client() as client:
        server.wait_ready()
        expected = detector.predict(part_pixels(3, True)).score

        def ask(_number: int) -> Any:
            return client.post("/v1/models/disc/predict", content=png(3, defect=True))

        with ThreadPoolExecutor(16) as pool, client.stream("GET", "/v1/events") as events:
            asked = [pool.submit(ask, number) for number in range(16)]
            wait_for(lambda: any(answer.done() for answer in asked))
            server.process.terminate()
            list(events.iter_lines())  # the stream ends by itself
            answered = [answer.result() for answer in asked if answer.exception() is None]
        # One that had not been accepted yet finds nobody; whatever was accepted is answered in full.
        assert all(answer.json()["score"] == expected for answer in answered)
        assert len(answered) >= 8
        server.process.wait(30)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "needs a token: --token-file FILE, or the variable PROCON_TOKEN"),
        (("--token", "short"), "a token must have at least 16 characters, got 5"),
        (("--token-file", "missing"), "--token-file must be a file that can be read, got missing"),
    ],
)
def test_the_command_refuses_what_is_not_safe(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    from typer.testing import CliRunner

    from procon.cli import app

    result = CliRunner().invoke(app, ["serve", str(tmp_path), *arguments])
    assert result.exit_code != 0 and words in str(result.exception)


def test_a_missing_extra_is_told_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from typer.testing import CliRunner

    from procon.cli import app
    from procon.errors import MissingExtraError

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object())
    result = CliRunner().invoke(app, ["serve", str(tmp_path)])
    assert isinstance(result.exception, MissingExtraError)
    assert str(result.exception) == "procon serve needs uvicorn: pip install 'procon[server]'"
