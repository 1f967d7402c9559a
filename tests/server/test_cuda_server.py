"""The service on CUDA: a real server process. Run where there is a GPU: pytest -m gpu."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch

from procon import Detector
from tests.conftest import part_pixels, tiny_config, write_tiny_backbone
from tests.server.process import ServerProcess, serving
from tests.server.test_api import png

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 dimensions let the fused kernels run, so groups are replayed graphs."""
    folder = tmp_path_factory.mktemp("cuda")
    wide, models = write_tiny_backbone(folder / "wide", hidden=64), folder / "models"
    models.mkdir()
    parts = [part_pixels(seed) for seed in range(8)]
    Detector(tiny_config(wide), device="cuda").fit(parts).save(models / "disc.procon")
    return models


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder, "--device", "cuda") as server:
        yield server


def batches(client: httpx.Client) -> int:
    found = re.search(r"^procon_device_batches_total (\S+)", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_those_that_ask_together_get_what_each_gets_alone(server: ServerProcess, folder: Path) -> None:
    alone = Detector.load(folder / "disc.procon", device="cuda")
    seeds = list(range(100, 148))
    with server.client() as client, ThreadPoolExecutor(24) as pool:

        def ask(seed: int) -> float:
            answer = client.post("/v1/models/disc/predict", content=png(seed, defect=seed % 4 == 0))
            assert answer.status_code == 200, answer.text
            return float(answer.json()["score"])

        before = batches(client)
        together = list(pool.map(ask, seeds))
        shared = batches(client) - before
        one_by_one = [ask(seed) for seed in seeds]
    assert shared < len(seeds)  # some passed the device together
    assert together == one_by_one == [alone.predict(part_pixels(s, defect=s % 4 == 0)).score for s in seeds]


def test_explaining_between_predictions_breaks_no_recorded_group(server: ServerProcess) -> None:
    with server.client() as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> int:
            route = "explain" if number % 3 == 0 else "predict"
            return client.post(f"/v1/models/disc/{route}", content=png(number)).status_code

        assert set(pool.map(ask, range(60))) == {200}
