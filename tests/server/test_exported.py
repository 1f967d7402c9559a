"""Exported folders in the service: they score as their detector does, and say what they cannot do."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from procon import Detector
from procon.deploy.export import export
from tests.conftest import part_pixels
from tests.server.process import ServerProcess, serving
from tests.server.test_api import client_of, png, ready, service_of, settings

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, detector: Detector) -> Path:
    folder = tmp_path_factory.mktemp("models")
    detector.save(folder / "disc.procon")
    export(detector, folder / "line", measure_memory=False)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, tiny_backbone: Path) -> Iterator[TestClient]:
    with client_of(settings(folder, tiny_backbone)) as client:
        yield ready(client)


def ask(client: Any, name: str, query: str = "", seed: int = 3) -> Any:
    answer = client.post(f"/v1/models/{name}/predict{query}", content=png(seed, defect=True))
    assert answer.status_code == 200, answer.text
    return answer


def assert_scores_alike(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert there["score"] == pytest.approx(here["score"], abs=1e-5)
    for name in ("is_anomalous", "threshold", "pixel_threshold", "p_value", "width", "height"):
        assert there[name] == here[name]
    assert [region["box"] for region in there["regions"]] == [region["box"] for region in here["regions"]]


def test_an_exported_folder_scores_as_its_detector(client: TestClient) -> None:
    assert_scores_alike(ask(client, "disc").json(), ask(client, "line").json())
    painted = ask(client, "line", "?output=overlay").content
    assert Image.open(io.BytesIO(painted)).size == (80, 96)
    verdicts = client.get("/v1/models/line/verdicts?waiting=true").json()["verdicts"]
    assert verdicts and all(verdict["model"] == "line" for verdict in verdicts)


def test_models_say_what_was_exported_and_what_its_threshold_promises(client: TestClient) -> None:
    file, line = (client.get(f"/v1/models/{name}").json() for name in ("disc", "line"))
    assert (file["exported"], line["exported"]) == (None, "onnx fp32")
    for model in (file, line):
        for image in model["threshold"]["decided_by"]:
            del image["name"]  # an export does not carry the names of the training images
    for name in ("threshold", "backbone", "image_size", "images", "anchors"):
        assert line[name] == file[name]
    assert line["revision"] != file["revision"] and line["history"] == []


@pytest.mark.parametrize("route", ["explain", "partial_fit", "threshold"])
def test_what_an_exported_model_cannot_do_is_refused(client: TestClient, route: str) -> None:
    if route == "threshold":
        answer = client.put("/v1/models/line/threshold", json={"score": 0.5})
    else:
        answer = client.post(f"/v1/models/line/{route}", content=png(1))
    assert answer.status_code == 409
    assert answer.json()["error"] == (
        "the model line was exported (onnx fp32) and only scores images; to explain, to learn or to move its "
        "threshold, serve the .procon file it was made from"
    )


def test_what_people_say_is_noted_and_not_learned(client: TestClient) -> None:
    number = ask(client, "line", seed=6).json()["id"]
    said = client.post(f"/v1/verdicts/{number}/feedback", json={"label": "good"}).json()
    assert said["state"] == "noted" and client.get("/v1/jobs").json() == {"jobs": []}
    assert number not in [
        verdict["id"] for verdict in client.get("/v1/models/line/verdicts?waiting=true").json()["verdicts"]
    ]
    assert client.delete(f"/v1/feedback/{said['id']}").json()["state"] == "withdrawn"
    assert client.get(f"/v1/verdicts/{number}").json()["label"] is None


def test_no_fit_takes_the_name_of_an_exported_model(client: TestClient) -> None:
    form = {"name": "line", "replace": "true"}
    answer = client.post("/v1/models", data=form, files=[("images", ("a.png", png(1)))])
    assert answer.status_code == 409 and "there is an exported model called line" in answer.json()["error"]


def test_a_new_export_is_served_and_a_broken_one_leaves_the_old(
    client: TestClient, folder: Path, detector: Detector, tmp_path: Path
) -> None:
    models, target = service_of(client).models, folder / "moving"
    changed = Detector.load(folder / "disc.procon", device="cpu").set_threshold(0.01)
    export(detector, target, measure_memory=False)
    models.scan()
    first = ask(client, "moving").json()
    export(changed, target, measure_memory=False)
    models.scan()
    second = ask(client, "moving").json()
    assert (first["threshold"], second["threshold"]) != (second["threshold"], first["threshold"])
    assert second["threshold"] == 0.01 and second["score"] == first["score"]
    whole = (target / "model.onnx").read_bytes()
    (target / "model.onnx").write_bytes(whole[:10])  # someone copies it here, slowly
    models.scan()
    assert ask(client, "moving").json()["score"] == first["score"]
    assert "model.onnx: has 10 of" in client.get("/v1/models/moving").json()["error"]
    assert str(folder) not in client.get("/v1/models").text
    (target / "model.onnx").write_bytes(whole)
    models.scan()
    assert client.get("/v1/models/moving").json()["error"] is None
    shutil.rmtree(target)
    models.scan()
    assert client.get("/v1/models/moving").status_code == 404


def test_of_a_file_and_a_folder_with_one_name_the_file_is_served(
    folder: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    shutil.copy(folder / "disc.procon", tmp_path / "part.procon")
    shutil.copytree(folder / "line", tmp_path / "part")
    for models, exported, can_fit in (
        (tmp_path, None, True),
        (tmp_path / "part", "onnx fp32", False),
        (tmp_path / "part.procon", None, False),
    ):
        with client_of(settings(models, tiny_backbone)) as client:
            listed = ready(client).get("/v1/models").json()
        assert [(model["name"], model["exported"]) for model in listed["models"]] == [("part", exported)]
        assert listed["can_fit"] is can_fit


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_the_real_server_serves_exported_folders(tmp_path: Path, detector: Detector, runtime: str) -> None:
    pytest.importorskip(runtime)
    export(detector, tmp_path / "part", runtime=runtime, measure_memory=False)
    expected = detector.predict(part_pixels(3, defect=True)).to_dict()
    for models in (tmp_path, tmp_path / "part"):
        with serving(models) as server, server.client() as client:
            found = ask(client, "part").json()
            assert_scores_alike({**expected, "width": 80, "height": 96}, found)
            assert client.get("/v1/models/part").json()["exported"] == f"{runtime} fp32"
            assert client.post("/v1/models/part/explain", content=png(1)).status_code == 409


@pytest.mark.slow
def test_a_folder_that_cannot_be_served_ends_the_command_with_a_sentence(tmp_path: Path, detector: Detector) -> None:
    export(detector, tmp_path / "part", measure_memory=False)
    (tmp_path / "part" / "model.onnx").unlink()
    with pytest.raises(RuntimeError, match=r"model\.onnx: is missing"):
        ServerProcess(tmp_path / "part")
