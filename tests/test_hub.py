"""Model files on the hub, against a local stand-in of its HTTP interface: the real hub is not reached by tests."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from procon import Detector, ModelFileError, OutputError
from tests.conftest import part_pixels

TOKEN = "hf_" + "thisTokenMustBeWrittenNowhere"


class StandIn(ThreadingHTTPServer):
    """The few routes of the hub that an upload and a download use; files are in memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.tokens: set[str | None] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        self._authorize()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
            status = 409 if name in self.server.repos else 200
            self.server.repos.setdefault(name, {})
            self.server.private.setdefault(name, asked.get("visibility") == "private" or bool(asked.get("private")))
            self._answer({"url": f"{self.server.url}/{name}"}, status)
        elif "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.repos[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"commitUrl": f"{self.server.url}/{name}/commit/1", "commitOid": "1" * 40, "success": True})
        else:
            self._answer({"error": "unknown"}, 404)

    def do_GET(self) -> None:
        self._authorize()
        if self.path.startswith("/api/models/"):
            name = self.path.removeprefix("/api/models/").partition("/tree/")[0]
            if name not in self.server.repos:
                self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            files = self.server.repos[name].items()
            self._answer([{"type": "file", "path": path, "size": len(b), "oid": "1" * 40} for path, b in files])
            return
        name, _, path = self.path.lstrip("/").partition("/resolve/")
        content = self.server.repos.get(name, {}).get(path.partition("/")[2].partition("?")[0])
        if content is None:
            self._answer(
                {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "1" * 40}
            )
            return
        self._send(content, 200, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": "1" * 40})

    do_HEAD = do_GET  # noqa: N815  as the base class calls it

    def _authorize(self) -> None:
        self.server.tokens.add(self.headers.get("Authorization"))

    def _answer(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(document).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def hub(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """The stand-in as the hub of this process, with an empty cache."""
    import huggingface_hub

    real = huggingface_hub.HfApi
    cache = tmp_path / "cache"

    class Api(real):  # type: ignore[misc, valid-type]
        def __init__(self, **settings: Any) -> None:
            super().__init__(endpoint=stand_in.url, **settings)

        def hf_hub_download(self, *arguments: Any, **settings: Any) -> Any:
            return super().hf_hub_download(*arguments, cache_dir=cache, **settings)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return stand_in


def test_a_detector_goes_to_the_hub_and_back(
    detector: Detector, hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    address = detector.push_to_hub("somebody/disc", token=TOKEN)
    assert address == f"{hub.url}/somebody/disc" and hub.private == {"somebody/disc": True}
    assert list(hub.repos["somebody/disc"]) == ["part.procon"]
    again = Detector.from_pretrained("somebody/disc", token=TOKEN, device="cpu")
    assert again.predict(part_pixels(1)).score == detector.predict(part_pixels(1)).score
    assert hub.tokens == {f"Bearer {TOKEN}"}
    detector.push_to_hub("somebody/disc", "other.procon", private=False, token=TOKEN)
    assert hub.private == {"somebody/disc": True}  # of a repository that is there, nothing is changed
    with pytest.raises(ModelFileError, match=r"expected one \.procon file, got other\.procon, part\.procon; name it"):
        Detector.from_pretrained("somebody/disc", token=TOKEN)
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert written and not any(TOKEN.encode() in content for content in written)
    named = Detector.from_pretrained("somebody/disc", "other.procon", token=TOKEN, device="cpu")
    assert named.calibration == detector.calibration


@pytest.mark.slow
def test_the_token_is_written_nowhere(detector: Detector, stand_in: StandIn, tmp_path: Path) -> None:
    """A process of its own, whose home, caches and temporary files are all searched."""
    path = detector.save(tmp_path / "disc.procon")
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import os, sys; from procon import Detector; token = sys.stdin.read()\n"
        f"detector = Detector.load({str(path)!r}, device='cpu')\n"
        "detector.push_to_hub('somebody/disc', token=token)\n"
        "print(Detector.from_pretrained('somebody/disc', token=token, device='cpu'))\n"
        "try: detector.push_to_hub('no/such/name', token=token)\n"
        "except Exception as error: print(error)"
    )
    places = {name: str(home) for name in ("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME")}
    environment = {**os.environ, **places, "HF_ENDPOINT": stand_in.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=TOKEN, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "threshold" in done.stdout and TOKEN not in done.stdout + done.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(".procon" in file.name for file in files if home in file.parents)
    assert [file for file in files if TOKEN.encode() in file.read_bytes()] == []
    assert TOKEN.encode() not in stand_in.repos["somebody/disc"]["part.procon"]
    assert f"Bearer {TOKEN}" in stand_in.tokens


def test_what_the_hub_refuses_is_explained_without_the_token(detector: Detector, hub: StandIn) -> None:
    with pytest.raises(ModelFileError, match=r"there is no such repository, or the token has no access") as refused:
        Detector.from_pretrained("somebody/nothing", token=TOKEN)
    assert TOKEN not in str(refused.value) and refused.value.__cause__ is None
    hub.repos["somebody/empty"] = {}
    with pytest.raises(ModelFileError, match=r"expected one \.procon file, got none"):
        Detector.from_pretrained("somebody/empty", token=TOKEN)
    with pytest.raises(ModelFileError, match="there is no such file in it; check filename"):
        Detector.from_pretrained("somebody/empty", "a.procon", token=TOKEN)
    with pytest.raises(ModelFileError, match=r"filename must end in \.procon, got a\.bin"):
        detector.push_to_hub("somebody/disc", "a.bin", token=TOKEN)
    with pytest.raises(OutputError, match="the name must be USER/NAME"):
        detector.push_to_hub("a/b/c", token=TOKEN)
    hub.shutdown()
    hub.server_close()
    with pytest.raises(OutputError, match="check the connection"):
        detector.push_to_hub("somebody/disc", token=TOKEN)
