"""Lessons in the service: marked on a part that passed, priced in the background, accepted, and taken back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from procon import Detector
from procon.model.metadata import read_metadata
from tests.conftest import part_pixels
from tests.server.process import wait_for
from tests.server.test_api import client_of, png, predict, ready, service_of, settings

BOX = [30, 40, 50, 60]  # of the defect of part_pixels


@pytest.fixture
def client(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> Iterator[TestClient]:
    """A service whose model misses the defects: its threshold is set too high."""
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        score = predict(ready(client), png(3, defect=True), "?keep=false").json()["score"]
        client.put("/v1/models/disc/threshold", json={"score": 1.2 * score})
        yield client


def asked(client: TestClient, verdict: int, **changes: Any) -> Any:
    return client.post(f"/v1/verdicts/{verdict}/lesson", json={"box": BOX, **changes})


def priced(client: TestClient, number: int) -> Any:
    def ended() -> Any:
        job = client.get(f"/v1/jobs/{number}").json()
        return job if job["state"] not in ("queued", "running") else None

    return wait_for(ended, 240)


def test_a_missed_defect_is_taught_and_the_lesson_taken_back(
    client: TestClient, tmp_path: Path, detector: Detector
) -> None:
    missed = predict(client, png(3, defect=True)).json()
    assert not missed["is_anomalous"]
    tensors = read_metadata(tmp_path / "disc.procon")["tensors_sha256"]
    queued = asked(client, missed["id"])
    assert queued.status_code == 202, queued.text
    number = queued.json()["id"]
    assert client.get(f"/v1/verdicts/{missed['id']}").json()["label"] == "defect"
    assert priced(client, number)["state"] == "done"
    price = client.get(f"/v1/lessons/{number}").json()
    expected = detector.propose_lesson(part_pixels(3, True), (30, 40, 50, 60))
    assert (price["score_before"], price["score_after"]) == expected.score
    assert price["is_known"] and not price["is_too_high"] and price["added"] == []
    assert any(line.startswith("price: none of 8 training images") for line in price["sentences"])
    assert str(tmp_path) not in str(price)
    assert predict(client, png(3, defect=True), "?keep=false").json()["score"] == missed["score"]  # nothing changed yet
    assert read_metadata(tmp_path / "disc.procon")["tensors_sha256"] == tensors

    model = client.post(f"/v1/lessons/{number}/accept", json={}).json()
    assert [lesson["name"] for lesson in model["lessons"]] == ["lesson 1"]
    assert model["history"][-1]["what"] == "taught"
    assert model["threshold"]["score"] == pytest.approx(1.2 * missed["score"])
    after = predict(client, png(3, defect=True), "?keep=false").json()
    assert after["score"] == price["score_after"] and after["is_anomalous"]
    why = client.post("/v1/models/disc/explain", content=png(3, defect=True)).json()["lesson"]
    assert why["lesson"] == "lesson 1" and why["gain"] > 1 and why["picture"].startswith("data:image/jpeg")
    good = client.post("/v1/models/disc/explain", content=png(50)).json()
    assert good["lesson"] is None
    decided = client.post(f"/v1/lessons/{number}/accept", json={})
    assert decided.status_code == 409 and "decided already" in decided.json()["error"]

    assert client.delete("/v1/models/disc/lessons/lesson 2").status_code == 404
    model = client.delete("/v1/models/disc/lessons/lesson 1").json()
    assert model["lessons"] == [] and model["history"][-1]["what"] == "forgot"
    assert predict(client, png(3, defect=True), "?keep=false").json()["score"] == missed["score"]
    assert read_metadata(tmp_path / "disc.procon")["tensors_sha256"] == tensors


def test_what_cannot_be_taught_is_refused_in_words(client: TestClient) -> None:
    missed = predict(client, png(0)).json()  # a training image: a lesson from it would flag that image
    for box, words in (
        ([30, 40, 81, 60], "must lie in the part of 80 x 96 pixels"),
        ([30, 40, 30, 60], "at least one"),
    ):
        refused = asked(client, missed["id"], box=box)
        assert refused.status_code == 422 and words in refused.json()["error"]
    assert asked(client, 999).status_code == 404
    number = asked(client, missed["id"], box=[0, 0, 20, 20]).json()["id"]
    again = asked(client, missed["id"])
    assert again.status_code == 409 and "price of another lesson" in again.json()["error"]
    failed = priced(client, number)
    assert failed["state"] == "failed" and "must look different from good parts" in failed["reason"]
    assert not client.get(f"/v1/lessons/{number}").json()["is_known"]
    assert client.post(f"/v1/lessons/{number}/accept", json={}).status_code == 409
    assert client.get("/v1/lessons/999").status_code == 404


def test_a_price_is_void_once_the_model_changed_and_too_high_a_price_needs_force(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = predict(client, png(5, defect=True)).json()
    number = asked(client, missed["id"]).json()["id"]
    assert priced(client, number)["state"] == "done"
    teaching = service_of(client).jobs.teaching
    known = teaching.price({"id": number, "state": "done"})
    assert known is not None
    with monkeypatch.context() as patch:
        patch.setattr(teaching, "price", lambda _job: {**known, "is_too_high": True})
        refused = client.post(f"/v1/lessons/{number}/accept", json={})
        assert refused.status_code == 409 and "accept it with force" in refused.json()["error"]
    with monkeypatch.context() as patch:
        patch.setattr(teaching, "price", lambda _job: {**known, "base": "another"})
        void = client.post(f"/v1/lessons/{number}/accept", json={"force": True})
        assert void.status_code == 409 and "the model changed" in void.json()["error"]
    assert client.get("/v1/models/disc").json()["lessons"] == []
    number = asked(client, missed["id"]).json()["id"]
    assert priced(client, number)["state"] == "done"
    assert client.delete(f"/v1/lessons/{number}").status_code == 204
    assert not client.get(f"/v1/lessons/{number}").json()["is_known"]
    assert not list((tmp_path / ".procon-serve" / "jobs").glob("*.procon"))
