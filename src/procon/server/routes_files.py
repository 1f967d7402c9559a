"""Routes of models as files: rename, delete, download, upload, export; and the verdicts of a model as a table."""

import asyncio
import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from procon.server import answers, schemas
from procon.server.model_files import ExportTarget, ModelFiles
from procon.server.openapi import FILE, PROBLEMS, ModelName, content
from procon.server.request_errors import require_existing
from procon.server.service import Service
from procon.server.store import StoreRow

_CHUNK = 2**20
_MODEL = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": FILE}}}}
_COLUMNS = (
    *("id", "at", "name", "score", "threshold", "relative_score", "p_value", "verdict", "regions"),
    *("label", "feedback", "score_after", "revision"),
)
_PAGE = 1000  # rows read at a time


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["files"], responses=PROBLEMS)
    files = ModelFiles(service)

    def answer(name: str) -> schemas.ModelAnswer:
        return answers.model_answer(service, name, require_existing(service.models.entries.get(name), "model"))

    @routes.get("/{name}/file", response_class=Response, responses=content("application/octet-stream"))
    def download(name: ModelName) -> StreamingResponse:
        """The model file, or an exported model as an archive."""
        return _send(*files.open(name))

    @routes.put("/{name}/file", openapi_extra=_MODEL)
    async def upload(
        request: Request,
        name: ModelName,
        replace: Annotated[bool, Query(description="Take the place of a model of this name.")] = False,
    ) -> schemas.ModelAnswer:
        """Add a model file, sent as the body, under a name. Its checksums are compared first."""
        await files.receive(name, request.stream(), replace)
        return await asyncio.to_thread(answer, name)

    @routes.patch("/{name}")
    def rename(name: ModelName, wanted: schemas.NewName) -> schemas.ModelAnswer:
        """Rename a model. Its past parts and its training images go with it."""
        files.rename(name, wanted.name)
        return answer(wanted.name)

    @routes.delete("/{name}", status_code=204)
    def delete(name: ModelName) -> None:
        """Delete a model with its past parts and its training images."""
        files.delete(name)

    @routes.post("/{name}/export", response_class=Response, responses=content("application/zip"))
    def export(
        name: ModelName, to: Annotated[ExportTarget, Query(description="Runtime of the export.")] = "onnx"
    ) -> StreamingResponse:
        """The model as an archive for machines without torch, after a comparison; this takes a minute or more."""
        return _send(f"{name}-{to}.zip", files.export(name, to))

    @routes.get("/{name}/verdicts.csv", response_class=Response, responses=content("text/csv"))
    def verdicts_csv(name: ModelName) -> StreamingResponse:
        """All stored verdicts of a model as a table, latest first."""
        service.models.get(name)
        headers = {"content-disposition": _attachment(f"{name}-verdicts.csv")}
        return StreamingResponse(_csv_lines(service, name), media_type="text/csv", headers=headers)

    return routes


def _attachment(name: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(name)}"


def _send(name: str, stream: BinaryIO) -> StreamingResponse:
    """A file that is closed when it has been sent."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)

    def chunks() -> Iterator[bytes]:
        with stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    kind = "application/zip" if name.endswith(".zip") else "application/octet-stream"
    headers = {"content-disposition": _attachment(name), "content-length": str(size), "cache-control": "no-store"}
    return StreamingResponse(chunks(), media_type=kind, headers=headers)


def _csv_lines(service: Service, name: str) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    before: int | None = None
    while True:
        rows = service.store.verdicts(name, _PAGE, before)
        writer.writerows(map(_csv_row, rows))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
        if len(rows) < _PAGE:
            return
        before = rows[-1]["id"]


def _csv_row(row: StoreRow) -> dict[str, Any]:
    verdict = {None: "", True: "anomalous", False: "good"}[row["is_anomalous"]]
    # A spreadsheet would compute a cell that begins like a formula.
    shown = "'" + row["name"] if row["name"].startswith(("=", "+", "-", "@")) else row["name"]
    return row | {
        "at": datetime.fromtimestamp(row["at"], UTC).isoformat(timespec="milliseconds"),
        "name": shown,
        "relative_score": answers.relative_score(row),
        "verdict": verdict,
        "regions": len(row["regions"]),
        "feedback": row["feedback_state"],
    }
