"""Models as files over HTTP: renamed, deleted, sent, received, exported; verdicts as a table; promises before a fit."""

import csv
import io
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from procon import Detector
from procon.config import ThresholdRule
from procon.files import find_partial_files, temporary_folder
from procon.model.calibration import Calibration, GoodScore
from procon.model.storage import read_model
from procon.server.settings import Limits
from procon.server.thresholds import describe_fit
from tests.server.process import wait_for
from tests.server.test_api import client_of, png, ready, service_of, settings

SPACED = "left bracket 2"


@pytest.fixture
def folder(tmp_path: Path, detector: Detector) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    detector.save(folder / "disc.procon")
    return folder


@pytest.fixture
def client(folder: Path, tiny_backbone: Path) -> Iterator[TestClient]:
    with client_of(settings(folder, tiny_backbone)) as client:
        yield ready(client)


def inspect(client: TestClient, model: str, seed: int, name: str = "part.png") -> int:
    answer = client.post(f"/v1/models/{model}/predict", files={"image": (name, png(seed, defect=True))})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


def learn(client: TestClient, model: str, seed: int) -> None:
    number = inspect(client, model, seed)
    feedback = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "good"}).json()["id"]
    wait_for(lambda: client.get(f"/v1/feedback/{feedback}").json()["state"] == "learned")


@pytest.mark.slow
def test_a_renamed_model_keeps_its_past_parts_and_can_still_forget(client: TestClient, folder: Path) -> None:
    learn(client, "disc", 3)
    wait_for(lambda: not service_of(client).store.is_busy("disc"))
    answer = client.patch("/v1/models/disc", json={"name": SPACED})
    assert answer.status_code == 200 and answer.json()["name"] == SPACED and answer.json()["images"] == 9
    assert [path.name for path in folder.glob("*.procon")] == [f"{SPACED}.procon"]
    assert client.get("/v1/models/disc").status_code == 404
    (row,) = client.get(f"/v1/models/{SPACED}/verdicts").json()["verdicts"]
    assert row["model"] == SPACED and row["feedback_state"] == "learned"
    assert client.delete(f"/v1/feedback/{row['feedback']}").json()["state"] == "forgetting"
    wait_for(lambda: client.get(f"/v1/models/{SPACED}").json()["images"] == 8)


@pytest.mark.slow
def test_training_images_of_a_renamed_model_survive_a_restart(folder: Path, tiny_backbone: Path) -> None:
    chosen = settings(folder, tiny_backbone)
    with client_of(chosen) as client:
        ready(client)
        images = [("images", (f"{seed}.png", png(seed))) for seed in range(4)]
        job = client.post("/v1/models", data={"name": "washer"}, files=images).json()["id"]
        wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "done")
        assert client.patch("/v1/models/washer", json={"name": "ring"}).status_code == 200
    with client_of(chosen) as client:  # it removes what belongs to no job
        ready(client)
        assert client.get("/v1/models/ring/good-images/0/picture").status_code == 200
        stored = chosen.state_folder / "training"
        assert [path.name for path in stored.iterdir()] == ["ring"]
        assert len(list(stored.rglob("*.png"))) == 4


@pytest.mark.parametrize("name", ["disc", "a/b", "", " a", "a ", ".a", "a\nb", "x" * 65])
def test_a_name_that_is_taken_or_no_name_is_refused(client: TestClient, name: str) -> None:
    answer = client.patch("/v1/models/disc", json={"name": name})
    assert answer.status_code == (409 if name == "disc" else 422), answer.text
    assert client.get("/v1/models/disc").status_code == 200


def test_a_name_with_past_parts_of_another_model_is_refused(client: TestClient, folder: Path) -> None:
    (folder / "old.procon").write_bytes((folder / "disc.procon").read_bytes())
    service_of(client).models.scan()
    inspect(client, "old", 3)
    (folder / "old.procon").unlink()  # by hand: its past parts stay
    service_of(client).models.scan()
    answer = client.patch("/v1/models/disc", json={"name": "old"})
    assert answer.status_code == 409 and "past parts of an earlier model" in answer.json()["error"]


def test_what_cannot_be_renamed_stays_as_it_was(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = inspect(client, "disc", 3)

    def fail(*_: object) -> None:
        raise OSError("made up")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        assert client.patch("/v1/models/disc", json={"name": "ring"}).status_code == 500
    assert client.get(f"/v1/verdicts/{number}").json()["model"] == "disc"
    assert (folder / "disc.procon").is_file() and client.get("/v1/models/disc").status_code == 200


def test_a_full_disk_in_the_middle_of_a_rename_changes_nothing(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(client)
    number, training = inspect(client, "disc", 3), service.jobs.training_folder("disc")
    training.mkdir(parents=True)
    rename, failures = service.store.rename_model, [sqlite3.OperationalError("database or disk is full")]

    def fail_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        rename(*arguments)

    monkeypatch.setattr(service.store, "rename_model", fail_once)
    assert client.patch("/v1/models/disc", json={"name": "ring"}).status_code == 500
    assert client.get(f"/v1/verdicts/{number}").json()["model"] == "disc"
    assert training.exists() and (folder / "disc.procon").is_file() and client.get("/v1/models/disc").status_code == 200
    assert not list((folder / ".procon-serve" / "changes").iterdir())
    assert client.patch("/v1/models/disc", json={"name": "ring"}).status_code == 200


@pytest.mark.parametrize("change", [{"rename": "disc", "to": "ring"}, {"delete": "disc"}])
@pytest.mark.parametrize("done", ["nothing", "database", "database and file"])
def test_a_rename_or_delete_that_was_killed_is_finished_at_the_next_start(
    change: dict[str, str], done: str, folder: Path, tiny_backbone: Path
) -> None:
    chosen = settings(folder, tiny_backbone)
    with client_of(chosen) as client:
        ready(client)
        inspect(client, "disc", 3)
        service = service_of(client)
        (service.jobs.training_folder("disc") / "feedback").mkdir(parents=True)
        if done != "nothing" and "rename" in change:
            service.store.rename_model("disc", "ring", chosen.state_folder / "training")
        elif done != "nothing":
            service.store.drop_model("disc")
    if done == "database and file":
        (folder / "disc.procon").rename(folder / "ring.procon")
        if "delete" in change:
            (folder / "ring.procon").unlink()
    notes = chosen.state_folder / "changes"
    notes.mkdir()
    (notes / "a.json").write_text(json.dumps(change))
    left = ["ring"] if "rename" in change else []
    with client_of(chosen) as client:
        ready(client)
        store = service_of(client).store
        assert [name for name in ("disc", "ring") if store.knows(name)] == left
        assert [path.stem for path in folder.glob("*.procon")] == left
        assert [path.name for path in (chosen.state_folder / "training").iterdir()] == left
        assert not list(notes.iterdir())


def test_what_a_killed_server_or_import_left_is_removed_and_what_is_being_written_is_not(
    folder: Path, tiny_backbone: Path
) -> None:
    chosen = settings(folder, tiny_backbone)
    left = [chosen.state_folder / ".procon.abc.partial", folder / ".procon.def.partial"]
    for path in left:
        path.mkdir(parents=True)
        (path / "part.procon").write_bytes(b"half a model")
    with temporary_folder(folder) as writing, client_of(chosen) as client:
        ready(client)
        assert not any(path.exists() for path in left) and writing.exists()


def test_an_upload_in_progress_is_below_a_name_that_the_next_start_removes(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Path]()

    def look(draft: Path) -> Any:
        seen.extend(find_partial_files(folder) or [draft.parent])
        return read_model(draft)

    monkeypatch.setattr("procon.server.model_files.read_model", look)
    answer = client.put("/v1/models/other/file", content=(folder / "disc.procon").read_bytes())
    assert answer.status_code == 200
    (place,) = seen
    assert place.name.startswith(".procon.") and place.suffix == ".partial" and not place.exists()


def test_a_deleted_model_leaves_nothing(client: TestClient, folder: Path) -> None:
    (folder / "other.procon").write_bytes((folder / "disc.procon").read_bytes())
    service_of(client).models.scan()
    inspect(client, "disc", 3)
    shared, own = inspect(client, "other", 3), inspect(client, "disc", 4)
    client.post(f"/v1/verdicts/{own}/feedback", json={"label": "defect"})
    training = service_of(client).jobs.training_folder("disc") / "feedback"
    training.mkdir(parents=True)
    assert client.delete("/v1/models/disc").status_code == 204
    assert client.get("/v1/models/disc").status_code == 404
    assert client.get(f"/v1/verdicts/{own}").status_code == 404
    assert client.get(f"/v1/verdicts/{shared}/image").status_code == 200, "another model needs the same image"
    state = folder / ".procon-serve"
    assert len(list((state / "parts").rglob("*.png"))) == 1
    assert not training.parent.exists() and not service_of(client).store.knows("disc")
    assert client.delete("/v1/models/disc").status_code == 404


def test_a_model_that_is_learning_is_neither_renamed_nor_deleted(client: TestClient) -> None:
    service = service_of(client)
    job = service.store.add_job("fit", "disc", {"folder": "disc/none", "images": [], "config": {}, "replace": True})
    for answer in (client.patch("/v1/models/disc", json={"name": "ring"}), client.delete("/v1/models/disc")):
        assert answer.status_code == 409 and "wait for it" in answer.json()["error"]
    service.store.move_job(job, "cancelled")


def test_a_model_goes_out_and_comes_back_under_another_name(client: TestClient, folder: Path) -> None:
    sent = client.get("/v1/models/disc/file")
    assert sent.content == (folder / "disc.procon").read_bytes()
    assert sent.headers["content-disposition"] == "attachment; filename*=UTF-8''disc.procon"
    answer = client.put(f"/v1/models/{SPACED}/file", content=sent.content)
    assert answer.status_code == 200, answer.text
    scores = [
        client.post(f"/v1/models/{name}/predict", content=png(3, defect=True)).json()["score"]
        for name in ("disc", SPACED)
    ]
    assert scores[0] == scores[1]
    again = client.put(f"/v1/models/{SPACED}/file", content=sent.content)
    assert again.status_code == 409 and "replace=true" in again.json()["error"]
    assert client.put(f"/v1/models/{SPACED}/file?replace=true", content=sent.content).status_code == 200
    assert not list((folder / ".procon-serve").glob("tmp*"))


@pytest.mark.parametrize("damage", [b"", b"no model", None])
def test_a_file_that_is_no_model_is_refused_before_it_is_there(
    client: TestClient, folder: Path, damage: bytes | None
) -> None:
    data = (folder / "disc.procon").read_bytes() if damage is None else damage
    answer = client.put("/v1/models/ring/file", content=data if damage is not None else data[:-3])
    assert answer.status_code == 422 and str(folder) not in answer.text
    assert not (folder / "ring.procon").exists()


def test_a_model_file_has_a_largest_size(folder: Path, tiny_backbone: Path) -> None:
    limits = Limits(fit_bytes=1000)
    with client_of(settings(folder, tiny_backbone, limits=limits)) as client:
        ready(client)
        answer = client.put("/v1/models/ring/file", content=(folder / "disc.procon").read_bytes())
        assert answer.status_code == 413 and not (folder / "ring.procon").exists()


def test_a_server_of_one_file_keeps_it(folder: Path, tiny_backbone: Path) -> None:
    with client_of(settings(folder / "disc.procon", tiny_backbone)) as client:
        ready(client)
        assert client.delete("/v1/models/disc").status_code == 409
        assert client.patch("/v1/models/disc", json={"name": "ring"}).status_code == 409
        assert client.put("/v1/models/ring/file", content=b"x").status_code == 409
        assert client.get("/v1/models/disc/file").status_code == 200


def test_an_export_arrives_as_an_archive_that_scores_the_same(client: TestClient, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from procon.deploy import Runtime

    answer = client.post("/v1/models/disc/export?to=onnx")
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path / "out")
    (tmp_path / "part.png").write_bytes(png(3, defect=True))
    score = client.post("/v1/models/disc/predict", content=png(3, defect=True)).json()["score"]
    exported = Runtime(tmp_path / "out" / "disc").predict(tmp_path / "part.png")
    assert exported.score == pytest.approx(score, rel=1e-4)
    assert client.post("/v1/models/disc/export?to=coreml").status_code == 422
    assert not list((folder / ".procon-serve").glob("tmp*"))


def test_verdicts_come_as_a_table(client: TestClient) -> None:
    numbers = [inspect(client, "disc", seed, name) for seed, name in ((3, "a, b.png"), (4, "-1+2.png"))]
    client.post(f"/v1/verdicts/{numbers[0]}/feedback", json={"label": "defect"})
    answer = client.get("/v1/models/disc/verdicts.csv")
    assert (
        answer.headers["content-type"].startswith("text/csv")
        and "disc-verdicts.csv" in answer.headers["content-disposition"]
    )
    second, first = list(csv.DictReader(io.StringIO(answer.text)))
    assert (first["name"], first["verdict"], first["label"], first["feedback"]) == (
        "a, b.png",
        "anomalous",
        "defect",
        "noted",
    )
    assert second["name"] == "'-1+2.png", "a spreadsheet must not compute it"
    verdict = client.get(f"/v1/verdicts/{numbers[0]}").json()
    assert float(first["score"]) == verdict["score"] and first["at"].endswith("+00:00")
    assert int(first["regions"]) == len(verdict["regions"])


def test_the_table_of_verdicts_has_all_of_them(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procon.server.routes_files._PAGE", 2)
    for seed in range(5):
        inspect(client, "disc", seed)
    rows = list(csv.DictReader(io.StringIO(client.get("/v1/models/disc/verdicts.csv").text)))
    assert [int(row["id"]) for row in rows] == [5, 4, 3, 2, 1]


def test_what_a_fit_will_promise_is_said_before_it(client: TestClient) -> None:
    ask = "/v1/promise?images={}&false_alarm_rate=0.01"
    few, some, many = (" ".join(client.get(ask.format(n)).json()["sentences"]) for n in (1, 12, 32))
    assert "1 image is too few to aim at a rate" in few and "With 8 or more" in few
    assert "aim at 1.0% false alarms and guarantee no rate" in some and "Weak: with 20 or more" in some
    assert "the lowest that 32 images could guarantee is 3.0%" in many and "Weak" not in many
    assert client.get("/v1/promise?images=0&false_alarm_rate=0.01").status_code == 422


@pytest.mark.parametrize("count", [9, 30, 120])
def test_the_promise_of_a_guarantee_is_that_of_its_threshold(count: int) -> None:
    calibration = Calibration.of([GoodScore(0.01 * k, 1.0, 0.1) for k in range(count)], 0.01, "guarantee")
    (sentence,) = describe_fit(count, 0.01, "guarantee")[:1]
    assert f"about {max(calibration.promised_rate, 0.01):.1%} of good parts" in sentence
    assert ("takes 99 images" in sentence) == (count < 99)


@pytest.mark.parametrize("rule", ["robust", "guarantee"])
def test_the_images_that_decide_are_named_with_what_they_change(
    client: TestClient, detector: Detector, rule: ThresholdRule
) -> None:
    client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.2, "rule": rule})
    threshold = client.get("/v1/models/disc").json()["threshold"]
    assert detector.calibration is not None
    calibration = detector.calibration.at_rate(0.2, rule)
    changes = {}
    for number in range(len(calibration.scores)):
        rest = [score for place, score in enumerate(calibration.good_scores) if place != number]
        changes[number] = abs(Calibration.of(rest, 0.2, rule).threshold - calibration.threshold)
    expected = sorted((change for change in changes.values() if change), reverse=True)[:4]
    assert expected and [changes[image["number"]] for image in threshold["decided_by"]] == expected
    for image in threshold["decided_by"]:
        rest = [score for number, score in enumerate(calibration.good_scores) if number != image["number"]]
        without = Calibration.of(rest, 0.2, rule).threshold
        assert image["threshold_without"] == without != threshold["score"]
    by_hand = client.put("/v1/models/disc/threshold", json={"score": 0.5}).json()["threshold"]
    assert by_hand["decided_by"] == []


@pytest.mark.slow
def test_a_name_with_spaces_is_fitted_and_served(client: TestClient, folder: Path) -> None:
    images = [("images", (f"{seed}.png", png(seed))) for seed in range(4)]
    job = client.post("/v1/models", data={"name": SPACED}, files=images).json()
    wait_for(lambda: client.get(f"/v1/jobs/{job['id']}").json()["state"] == "done")
    assert (folder / f"{SPACED}.procon").is_file()
    assert client.post(f"/v1/models/{SPACED}/predict", content=png(1)).status_code == 200
