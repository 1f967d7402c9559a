"""The service over HTTP: answers, limits, refusals. One application in this process serves most of these tests."""

import asyncio
import base64
import importlib.util
import io
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from starlette.requests import ClientDisconnect

from procon import Detector
from procon.errors import ConfigError
from procon.hosts import is_local_host
from procon.model.document import write_renderings
from procon.results.inspection import inspect
from procon.server import parts
from procon.server.app import create_app
from procon.server.scheduler import Work
from procon.server.service import Service
from procon.server.settings import Limits, Settings
from procon.server.uploads import Upload
from tests.conftest import part_pixels, tiny_config, with_model

TOKEN = "correct horse battery"


def png(seed: int, defect: bool = False) -> bytes:
    return encoded(part_pixels(seed, defect))


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def settings(folder: Path, weights: Path, **changes: Any) -> Settings:
    return Settings(folder, device="cpu", fit=tiny_config(weights), scan_seconds=3600, **changes)


def client_of(chosen: Settings) -> TestClient:
    return TestClient(create_app(chosen), base_url="http://127.0.0.1:8321", raise_server_exceptions=False)


def service_of(client: TestClient) -> Service:
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    return service


def ready(client: TestClient) -> TestClient:
    until = time.monotonic() + 60
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    return client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, detector: Detector) -> Path:
    folder = tmp_path_factory.mktemp("models")
    detector.save(folder / "disc.procon")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, tiny_backbone: Path) -> Iterator[TestClient]:
    limits = Limits(body_bytes=200_000, pixels=1_000_000)
    with client_of(settings(folder, tiny_backbone, limits=limits)) as client:
        yield ready(client)


def predict(client: TestClient, data: bytes, query: str = "", **headers: str) -> Any:
    return client.post(f"/v1/models/disc/predict{query}", content=data, headers={"content-type": "image/png"} | headers)


# ------------------------------------------------------------------------------------------------------------- answers


def test_a_prediction_is_the_detectors(client: TestClient, detector: Detector) -> None:
    answer = predict(client, png(3, defect=True)).json()
    alone = detector.predict(part_pixels(3, defect=True)).to_dict()
    assert {name: answer[name] for name in alone if name != "source"} == {
        name: value for name, value in alone.items() if name != "source"
    }
    assert (answer["width"], answer["height"], answer["map"]) == (80, 96, None)


def test_a_form_and_a_raw_body_give_the_same(client: TestClient) -> None:
    raw = predict(client, png(5)).json()
    form = client.post("/v1/models/disc/predict", files={"image": ("..\\evil/part 5.txt", png(5))}).json()
    assert form["score"] == raw["score"]
    assert (raw["name"], form["name"]) == ("image", "part 5.txt")


def test_the_float_map_and_the_overlay_come_on_request(client: TestClient, detector: Detector) -> None:
    expected = detector.predict(part_pixels(6, defect=True)).heatmap
    answer = predict(client, png(6, defect=True), "?output=map")
    assert answer.headers["content-type"] == "application/x-npy"
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), expected)
    painted = predict(client, png(6, defect=True), "?output=overlay")
    assert Image.open(io.BytesIO(painted.content)).size == (80, 96)
    assert float(painted.headers["x-procon-score"]) == pytest.approx(
        detector.predict(part_pixels(6, True)).score, abs=0
    )


def test_a_map_in_the_json_has_at_most_the_side_asked_for(client: TestClient) -> None:
    small = predict(client, png(6), "?map_side=48").json()["map"]
    assert (small["width"], small["height"]) == (40, 48)
    assert len(np.frombuffer(base64.b64decode(small["data"]), "<f4")) == 40 * 48


def test_concurrent_answers_are_those_of_each_alone(client: TestClient, detector: Detector) -> None:
    expected = [detector.predict(part_pixels(seed, seed % 3 == 0)).score for seed in range(24)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda seed: predict(client, png(seed, seed % 3 == 0)).json()["score"], range(24)))
    assert found == expected


def test_explain_names_normal_patches_and_no_folder(client: TestClient, good_folder: Path) -> None:
    answer = client.post("/v1/models/disc/explain?xy=40,50", content=png(3, defect=True))
    found = answer.json()
    assert str(good_folder.parent) not in answer.text
    assert found["xy"] == [40, 50] and found["box"][0] <= 40 < found["box"][2]
    assert len(found["normal_patches"]) == 5 and len(found["layers"]) == 2
    first = found["normal_patches"][0]
    assert first["image"].endswith(".png") and "/" not in first["image"]
    assert first["picture"].startswith("data:image/jpeg;base64,")
    assert found["score"] == pytest.approx(sum(layer["contribution"] for layer in found["layers"]))
    peak = client.post("/v1/models/disc/explain", content=png(3, defect=True)).json()
    assert 25 <= peak["xy"][0] < 55 and 35 <= peak["xy"][1] < 65


def test_explain_finds_the_peak_inside_a_region(client: TestClient, detector: Detector) -> None:
    data, heatmap = png(3, defect=True), detector.predict(part_pixels(3, defect=True)).heatmap
    boxes = [detector.predict(part_pixels(3, defect=True)).regions[0].box, (0, 0, 30, 20)]
    for left, top, right, bottom in boxes:
        row, column = np.unravel_index(np.argmax(heatmap[top:bottom, left:right]), (bottom - top, right - left))
        answer = client.post(f"/v1/models/disc/explain?region={left},{top},{right},{bottom}", content=data).json()
        assert answer["xy"] == [left + column, top + row]
        assert answer["xy"] != [(left + right) // 2, (top + bottom) // 2]


def test_the_overlay_is_the_one_that_predict_writes(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    """Also for a part that is anomalous by its score while no pixel reaches the pixel threshold."""
    detector.save(tmp_path / "disc.procon")
    changed = Detector.load(tmp_path / "disc.procon", device="cpu").set_threshold(0.01)
    changed.save(tmp_path / "disc.procon")
    parts = {"defect": png(3, defect=True), "peak only": png(8)}
    for name, data in parts.items():
        (tmp_path / f"{name}.png").write_bytes(data)
    inspect(changed, [(f"{name}.png", tmp_path / f"{name}.png") for name in parts], tmp_path / "out")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        ready(client)
        for name, data in parts.items():
            answer = predict(client, data).json()
            assert answer["is_anomalous"]
            assert (answer["regions"][0]["level"] < answer["pixel_threshold"]) == (name == "peak only")
            expected = np.asarray(Image.open(tmp_path / "out" / "overlays" / f"{name}.png"))
            painted = np.asarray(Image.open(io.BytesIO(predict(client, data, "?output=overlay").content)))
            np.testing.assert_array_equal(painted, expected)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?region=90,3,95,8", "region must overlap the image of 80 x 96 pixels"),
        ("?xy=3,3&region=0,0,9,9", "give xy or region, not both"),
        ("?xy=80,3", "xy must be a pixel of the image, from 0,0 to 79,95"),
        ("?xy=3", "query.xy: String should match pattern"),
    ],
)
def test_a_pixel_must_be_in_the_image(client: TestClient, query: str, words: str) -> None:
    answer = client.post(f"/v1/models/disc/explain{query}", content=png(3))
    assert answer.status_code == 422 and words in answer.json()["error"]


def test_models_say_what_their_threshold_promises(client: TestClient, detector: Detector) -> None:
    listed = client.get("/v1/models").json()
    assert listed["can_fit"] is True
    (model,) = [model for model in listed["models"] if model["name"] == "disc"]
    assert model == client.get("/v1/models/disc").json()
    assert detector.calibration is not None
    assert model["threshold"]["good_scores"] == list(detector.calibration.ascending)
    assert model["threshold"]["promised_rate"] == pytest.approx(1 / 9)
    assert model["images"] == 8


def test_metrics_count_verdicts_and_scores_per_model(client: TestClient) -> None:
    before = client.get("/metrics").text
    predict(client, png(3, defect=True))
    after = client.get("/metrics").text

    def value(text: str, name: str) -> float:
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    for name in (
        'procon_verdicts_total{model="disc",verdict="anomalous"}',
        'procon_score_count{model="disc"}',
        'procon_request_seconds_count{model="disc",route="predict"}',
    ):
        assert value(after, name) == value(before, name) + 1
    assert value(after, "procon_queue_limit_images") == 32


# ------------------------------------------------------------------------------------------------------------ refusals


def test_the_queue_is_bounded_and_says_when_to_come_back(client: TestClient) -> None:
    queue = service_of(client).queue
    with ExitStack() as places:
        for _ in range(queue.limit):
            places.enter_context(queue.place(1))
        answer = predict(client, png(1))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json() == {"error": "the queue is full; try again shortly"}
    assert predict(client, png(1)).status_code == 200


def test_memory_is_bounded_too(client: TestClient) -> None:
    queue = service_of(client).queue
    with queue.place(10 * queue.limit * 2**30):  # alone, the first may have more than the limit
        assert predict(client, png(1)).status_code == 503
    assert predict(client, png(1)).status_code == 200


def test_a_body_beyond_the_limit_is_refused_while_it_streams(client: TestClient) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    for content in (b"x" * 200_001, endless()):  # with a length, and without
        answer = client.post("/v1/models/disc/predict", content=content)
        assert answer.status_code == 413
        assert answer.json() == {"error": "the body must have at most 200,000 bytes"}


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(client: TestClient) -> None:
    bomb = encoded(np.zeros((2000, 2000), np.uint8))
    assert len(bomb) < 20_000
    answer = predict(client, bomb)
    assert answer.status_code == 413
    assert answer.json() == {"error": "an image must have at most 1,000,000 pixels; scale it down"}


def animation() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(part_pixels(seed)) for seed in range(3)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an image must be sent, got an empty body"),
        (b"\x89PNG\r\n\x1a\nnothing", "unsupported image format"),
        (b"<svg onload='alert(1)'/>", "unsupported image format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n", "unsupported image format"),
        (encoded(part_pixels(1))[:4000], "the image"),
        (encoded(np.zeros((8, 8), np.uint8)), "each side must have at least 14"),
        (animation(), "has 3 frames or pages"),
    ],
)
def test_what_is_no_image_is_refused(client: TestClient, data: bytes, words: str) -> None:
    answer = predict(client, data)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "name", ["nothing", "..%2f..%2fetc%2fpasswd", "%2e%2e", ".hidden", "a%00b", "x" * 70, "disc.procon"]
)
def test_a_name_cannot_leave_the_folder(client: TestClient, name: str) -> None:
    for answer in (
        client.post(f"/v1/models/{name}/predict", content=png(1)),
        client.put(f"/v1/models/{name}/threshold", json={"score": 1.0}),
        client.get(f"/v1/models/{name}/verdicts"),
    ):
        assert answer.status_code in (404, 422)
        assert set(answer.json()) == {"error"}


def test_a_model_that_cannot_be_loaded_says_why_without_a_path(client: TestClient, folder: Path) -> None:
    broken = folder / "broken.procon"
    broken.write_bytes((folder / "disc.procon").read_bytes()[:-100])
    try:
        service_of(client).models.scan()
        answer = client.post("/v1/models/broken/predict", content=png(1))
        assert answer.status_code == 409
        assert answer.json()["error"].startswith("the model broken cannot be loaded: broken.procon: is truncated")
        assert str(folder) not in client.get("/v1/models").text
    finally:
        broken.unlink()
        service_of(client).models.scan()
    assert client.post("/v1/models/broken/predict", content=png(1)).status_code == 404


def test_pages_of_other_origins_can_change_nothing(client: TestClient) -> None:
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert predict(client, png(1), **headers).status_code == 403
    assert predict(client, png(1), origin="http://127.0.0.1:8321").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8321", "127.0.0.1", "127.8.8.8:1", "[::1]", "[::1]:8321"])
def test_this_machine_is_a_host(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "evil.localhost", "", " ", "localhost localhost", "localhost,evil"),
        *("[::1].evil.com", "[::1]evil.com:80", "[::1", "::1", "[[::1]]", "[::1%25evil]", "[::1%lo]", "[127.0.0.1]"),
        *("localhost:19101@evil", "localhost:80:80", "localhost:", "localhost:999999", "localhost:-1", "localhost:8a"),
        *(
            "user@localhost",
            "localhost@evil.com",
            "localhost/evil.com",
            "localhost?x",
            "localhost#x",
            "localhost\\evil",
        ),
        *("127.0.0.1.evil.com", "127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "127.0.0.1\t", "0.0.0.0", "[::]"),
        *("localhost\x00", "localhost\x85", "lоcalhost".encode().decode("latin-1"), "127.0.0.²", "localhost."),
    ],
)
def test_a_forged_host_is_refused_without_a_token(host: str) -> None:
    assert not is_local_host([host])


def test_two_hosts_or_none_are_refused(client: TestClient) -> None:
    assert not is_local_host([]) and not is_local_host(["localhost", "localhost"])
    assert client.get("/v1/models", headers=[("host", "localhost"), ("host", "evil")]).status_code == 403
    answer = client.get("/v1/models", headers={"host": "[::1].evil.com"})
    assert answer.status_code == 403
    assert answer.json()["error"].startswith("this server answers to localhost only")


def test_with_a_token_everything_but_probes_and_the_page_needs_it(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone, token=TOKEN, host="0.0.0.0")) as client:
        ready(client)
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/jobs", "/v1/verdicts/1/image"):
            assert client.get(path).status_code == 401
        for wrong in ("Bearer wrong", TOKEN, "Basic " + TOKEN, "Bearer "):
            assert client.get("/v1/models", headers={"authorization": wrong}).status_code == 401
        right = {"authorization": f"Bearer {TOKEN}", "host": "line3.factory"}
        assert client.get("/v1/models", headers=right).status_code == 200


def test_answers_forbid_sniffing_framing_and_foreign_scripts(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/v1/models"), client.get("/v1/models", headers={"host": "evil"})):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_only_one_server_may_use_a_state_folder(client: TestClient, folder: Path, tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="another server is using this folder"):
        create_app(settings(folder, tiny_backbone))


# ---------------------------------------------------------------------------------------------------- a sender who left


def test_work_for_a_client_that_left_is_dropped(client: TestClient) -> None:
    service = service_of(client)
    hold, model = threading.Event(), service.models.get("disc")
    service.worker.submit(Work(object(), None, lambda _: [hold.wait(20)]))  # the device is busy

    class Gone:
        async def receive(self) -> dict[str, str]:
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

    async def ask() -> None:
        await service.inspect(model, Upload(png(1)), Gone(), True, id)  # type: ignore[arg-type]

    batches = service.worker.batches
    try:
        with pytest.raises(ClientDisconnect):
            asyncio.run(ask())
    finally:
        hold.set()
    predict(client, png(2))
    assert service.worker.batches == batches + 2  # the one that was held, and the last; nothing for who had left


# ------------------------------------------------------------------------------------------------ threshold and review


def test_the_threshold_moves_and_past_parts_follow(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        ready(client)
        scores = [predict(client, png(seed, defect=seed == 3)).json()["score"] for seed in range(4)]
        revision = client.get("/v1/models/disc").json()["revision"]
        (waiting,) = client.get("/v1/models/disc/verdicts?waiting=true").json()["verdicts"]
        assert waiting["score"] == scores[3] and waiting["is_anomalous"] is True
        low = min(scores) - 0.01
        changed = client.put("/v1/models/disc/threshold", json={"score": low}).json()
        assert changed["threshold"]["score"] == low and changed["threshold"]["by_hand"] is True
        assert changed["revision"] != revision and changed["waiting"] == 4
        assert predict(client, png(0)).json()["is_anomalous"] is True
        assert changed["history"][-1]["what"] == "threshold"
        back = client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.2}).json()
        assert back["threshold"]["by_hand"] is False and back["threshold"]["false_alarm_rate"] == 0.2
        assert Detector.load(tmp_path / "disc.procon", device="cpu").config.false_alarm_rate == 0.2


def with_odd_image(detector: Detector) -> Detector:
    """The same model, whose sixth good image scores far above the others."""
    calibration = detector.calibration
    assert calibration is not None
    scores = tuple(9.0 if place == 5 else score for place, score in enumerate(calibration.scores))
    return with_model(detector, calibration=replace(calibration, scores=scores))


def test_rates_are_on_offer_by_both_rules_and_setting_one_is_logged(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    with_odd_image(detector).save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        threshold = ready(client).get("/v1/models/disc").json()["threshold"]
        assert threshold["rule"] == "robust"
        good = client.get("/v1/models/disc/good-images").json()["images"]
        assert len(good) == 8 and [image["score"] for image in good] == threshold["good_scores"][::-1]
        offers = {(offer["rule"], offer["false_alarm_rate"]): offer for offer in threshold["offers"]}
        assert offers[("robust", 0.01)]["score"] == threshold["score"]
        assert min(rate for rule, rate in offers if rule == "guarantee") == pytest.approx(1 / 9)
        for offer in offers.values():
            assert offer["above"] == sum(image["score"] > offer["score"] for image in good)
        assert offers[("robust", 0.1)]["above"] >= 1
        for (rule, rate), offer in offers.items():
            wanted = {"false_alarm_rate": rate, "rule": rule}
            changed = client.put("/v1/models/disc/threshold", json=wanted).json()
            assert changed["threshold"]["score"] == offer["score"] and changed["threshold"]["rule"] == rule
            assert f"{rule} at rate {rate:g}" in changed["history"][-1]["note"]
        kept = client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.2}).json()
        assert kept["threshold"]["rule"] == "guarantee"  # without a rule, the rule stays
        assert Detector.load(tmp_path / "disc.procon", device="cpu").config.threshold_rule == "guarantee"


def test_each_rate_says_what_it_finds_of_rendered_defects(
    tmp_path: Path, detector: Detector, tiny_backbone: Path
) -> None:
    own = with_model(detector)
    own.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        threshold = ready(client).get("/v1/models/disc").json()["threshold"]
        assert threshold["rendered"] is None and all(offer["rendered"] is None for offer in threshold["offers"])
        renderings = own.limits(count=20, sizes=(3, 30)).renderings
        write_renderings(tmp_path / "disc.procon", renderings)  # as procon limits does beside a service
        service_of(client).models.scan()
        threshold = client.get("/v1/models/disc").json()["threshold"]
        for offer in (threshold, *threshold["offers"]):
            judged = [found for _, found in renderings.judged(offer["score"])]
            assert (offer["rendered"]["found"], offer["rendered"]["total"]) == (sum(judged), len(judged))
        changed = client.put("/v1/models/disc/threshold", json={"false_alarm_rate": 0.1}).json()["threshold"]
        judged = [found for _, found in renderings.judged(changed["score"])]
        assert (changed["rendered"]["found"], changed["rendered"]["total"]) == (sum(judged), len(judged))


def test_odd_images_are_named_with_their_picture_and_what_they_would_change(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, good_folder: Path
) -> None:
    odd = with_odd_image(detector)
    odd.save(tmp_path / "disc.procon")
    assert odd.calibration is not None and detector.model.memory.images[5].thumbnail == b""
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        answer = ready(client).get("/v1/models/disc")
        threshold = answer.json()["threshold"]
        assert str(good_folder.parent) not in answer.text
        (image,) = threshold["set_aside"]
        assert (image["number"], image["name"], image["score"], image["set_aside"]) == (5, "005.png", 9.0, True)
        assert image["deviations"] == pytest.approx(odd.calibration.spread.deviations(9.0))
        assert threshold["score_without_odd"] == threshold["score"] < 2 < threshold["score_with_odd"]
        assert "005.png scores 9.0000" in " ".join(threshold["sentences"])
        good = client.get("/v1/models/disc/good-images").json()["images"]
        assert good[0] == image and not any(other["set_aside"] for other in good[1:])
        picture = client.get("/v1/models/disc/good-images/5/picture")
        assert picture.headers["content-type"] == "image/jpeg"
        shown = np.asarray(Image.open(io.BytesIO(picture.content)).convert("RGB")).astype(int)
        assert np.abs(shown - part_pixels(5)).mean() < 5
        assert client.get("/v1/models/disc/good-images/8/picture").status_code == 404


def test_a_good_image_that_is_gone_has_a_name_and_no_picture(
    tmp_path: Path, tiny_backbone: Path, good_folder: Path
) -> None:
    folder = Path(shutil.copytree(good_folder, tmp_path / "good"))
    for name, thumbnails in (("bare", False), ("small", True)):
        Detector(tiny_config(tiny_backbone), device="cpu").fit(folder, thumbnails=thumbnails).save(
            tmp_path / f"{name}.procon"
        )
    shutil.rmtree(folder)
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        ready(client)
        names = [image["name"] for image in client.get("/v1/models/bare/good-images").json()["images"]]
        assert sorted(names) == [f"{number:03d}.png" for number in range(8)]
        gone = client.get("/v1/models/bare/good-images/0/picture")
        assert gone.status_code == 410 and "can no longer be read" in gone.json()["error"]
        assert client.get("/v1/models/small/good-images/0/picture").status_code == 200


def test_relative_scores_are_in_units_of_the_threshold(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    detector.save(tmp_path / "disc.procon")
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        part = predict(ready(client), png(3, defect=True)).json()
        assert part["relative_score"] == pytest.approx(part["score"] / part["threshold"]) and part["relative_score"] > 1
        client.put("/v1/models/disc/threshold", json={"score": 0.0})
        assert predict(client, png(3, defect=True)).json()["relative_score"] is None
        latest, first = client.get("/v1/models/disc/verdicts").json()["verdicts"]
        assert latest["relative_score"] is None and first["relative_score"] == part["relative_score"]
        assert client.get(f"/v1/verdicts/{part['id']}").json() == first


@pytest.mark.parametrize(
    "wanted",
    [
        {"false_alarm_rate": 0.1, "rule": "none"},
        {"score": 1, "rule": "robust"},
        {},
        {"score": -1},
        {"score": "1"},
        {"false_alarm_rate": 1},
        {"score": 1, "false_alarm_rate": 0.1},
        {"x": 1},
    ],
)
def test_a_threshold_is_one_valid_number(client: TestClient, wanted: dict[str, Any]) -> None:
    assert client.put("/v1/models/disc/threshold", json=wanted).status_code == 422


def test_verdicts_keep_the_image_as_it_was_sent(client: TestClient) -> None:
    number = predict(client, png(7)).json()["id"]
    assert client.get(f"/v1/verdicts/{number}/image").content == png(7)
    assert Image.open(io.BytesIO(client.get(f"/v1/verdicts/{number}/thumbnail").content)).format == "JPEG"
    assert client.get(f"/v1/verdicts/{number}").json()["has_image"] is True
    assert client.get("/v1/verdicts/999999/image").status_code == 404
    unkept = predict(client, png(8), "?keep=false").json()
    assert unkept["id"] is None


def test_old_images_give_way_to_new_ones(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_PRUNE_EVERY", 1)
    detector.save(tmp_path / "disc.procon")
    size = len(png(0))
    with client_of(settings(tmp_path, tiny_backbone, limits=Limits(kept_bytes=3 * size, kept_verdicts=5))) as client:
        ready(client)
        numbers = [predict(client, png(seed)).json()["id"] for seed in range(8)]
        kept = client.get("/v1/models/disc/verdicts").json()["verdicts"]
        assert [row["id"] for row in kept] == numbers[:2:-1]
        assert client.get(f"/v1/verdicts/{numbers[-1]}/image").status_code == 200
        assert client.get(f"/v1/verdicts/{numbers[3]}/image").status_code == 410
        files = [path for path in (tmp_path / ".procon-serve" / "parts").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 3 * size


# ---------------------------------------------------------------------------------------------------------- reloading


def test_a_changed_file_is_served_without_a_restart_or_a_failure(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, good_folder: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    other = Detector(tiny_config(tiny_backbone, banks=1), device="cpu").fit(good_folder)
    expected = {detector.predict(part_pixels(3, True)).score, other.predict(part_pixels(3, True)).score}
    assert len(expected) == 2
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        ready(client)
        answers: list[Any] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(predict(client, png(3, defect=True)))

        asking = threading.Thread(target=ask)
        asking.start()
        for turn in range(4):
            (detector if turn % 2 else other).save(tmp_path / "disc.procon")
            service_of(client).models.scan()
        stop.set()
        asking.join()
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["score"] for answer in answers} <= expected
        (tmp_path / "disc.procon").write_bytes(b"half a mod")  # someone copies over it, slowly
        service_of(client).models.scan()
        assert predict(client, png(3, defect=True)).status_code == 200
        assert "is not a ProCon model" in client.get("/v1/models/disc").json()["error"]
        (tmp_path / "disc.procon").unlink()
        service_of(client).models.scan()
        assert predict(client, png(3)).status_code == 404


def test_models_with_one_backbone_hold_its_weights_once(
    tmp_path: Path, detector: Detector, tiny_backbone: Path, good_folder: Path
) -> None:
    detector.save(tmp_path / "disc.procon")
    detector.save(tmp_path / "carried.procon", embed_backbone=True)
    wide = Detector(tiny_config(tiny_backbone, image_size=(70, 112)), device="cpu").fit(good_folder)
    wide.save(tmp_path / "wide.procon")
    shallow = Detector(tiny_config(tiny_backbone, layers=(-2, -3)), device="cpu").fit(good_folder)
    shallow.save(tmp_path / "shallow.procon")
    expected = {"disc": detector, "carried": detector, "wide": wide, "shallow": shallow}
    with client_of(settings(tmp_path, tiny_backbone)) as client:
        models = service_of(ready(client)).models
        networks = {name: id(models.get(name).detector.reader.extractor.backbone._model) for name in expected}
        assert networks["disc"] == networks["carried"] == networks["wide"] != networks["shallow"]
        for name, alone in expected.items():
            found = client.post(f"/v1/models/{name}/predict", content=png(3, defect=True)).json()
            assert found["score"] == alone.predict(part_pixels(3, True)).score
        (tmp_path / "carried.procon").unlink()
        wide.save(tmp_path / "disc.procon")  # the first is replaced: whoever is left passes the weights on
        models.scan()
        assert id(models.get("disc").detector.reader.extractor.backbone._model) == networks["wide"]


def test_openapi_names_every_route(client: TestClient) -> None:
    paths = set(client.get("/openapi.json").json()["paths"])
    assert {"/v1/models", "/v1/models/{name}/predict", "/v1/jobs/{number}/events", "/healthz", "/metrics"} <= paths


def test_the_tables_of_the_document_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    spec = importlib.util.spec_from_file_location("server_benchmark", root / "benchmarks" / "server.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # dataclasses look their module up
    spec.loader.exec_module(script)
    text = (root / "docs" / "use" / "server.md").read_text(encoding="utf-8")
    assert script.put_tables(text) == text, "run: python benchmarks/server.py --table"
