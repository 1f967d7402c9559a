"""What schemathesis makes of the OpenAPI: requests of every kind, none of which may break a promise of the schema."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from procon import Detector
from tests.server.process import serving, tiny_settings
from tests.server.test_api import png

# No schema can say which bytes are an image of at least 14 x 14 pixels, or a model: there 422 is right for any bytes.
_CONFIG = """
[[operations]]
include-path-regex = "/(predict|explain|partial_fit|file)$|^/v1/models$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "413", "422", "503"]
"""


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path, detector: Detector, tiny_backbone: Path) -> None:
    pytest.importorskip("schemathesis")
    models = tmp_path / "models"
    models.mkdir()
    detector.save(models / "disc.procon")
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CONFIG)
    with serving(models, *tiny_settings(tiny_backbone)) as server:
        with server.client() as client:
            assert client.post("/v1/models/disc/predict", content=png(3, defect=True)).status_code == 200
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        command += [f"{server.url}/openapi.json", "--exclude-path", "/v1/events", "--max-examples", "30"]
        command += ["--continue-on-failure", "--phases", "examples,coverage,fuzzing", "--seed", "1"]
        found = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "COLUMNS": "120"}
        )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
    assert "30 passed" in found.stdout, found.stdout[-3000:]
