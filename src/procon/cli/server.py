"""The command that serves models to other programs and to people."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from procon.cli.flags import DeviceOption
from procon.cli.terminal import echo
from procon.config import Config
from procon.errors import ConfigError, MissingExtraError

_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(
    models: Annotated[
        Path, Argument(metavar="MODELS", help="Folder of model files and folders from `procon export`, or one of them.")
    ],
    host: Annotated[str, Option(help="Address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8321,
    token_file: Annotated[Path | None, Option(help="File with the token that requests must carry.")] = None,
    token: Annotated[
        str | None,
        Option(envvar="PROCON_TOKEN", help="The token itself; better in the variable PROCON_TOKEN, or a file."),
    ] = None,
    state: Annotated[
        Path | None, Option(help="Folder for jobs, verdicts and training images; default: next to the models.")
    ] = None,
    device: DeviceOption = "auto",
    queue: Annotated[
        int | None,
        Option(min=1, help="Images accepted at a time, beyond it requests get 503; default: 32, on a GPU 128."),
    ] = None,
    queue_seconds: Annotated[
        float, Option(min=0.01, help="Seconds of work that may wait while requests have to be refused.")
    ] = 1.0,
    max_body_mib: Annotated[int, Option(min=1, help="Largest image file, MiB.")] = 32,
    max_pixels: Annotated[int, Option(min=196, help="Largest image.")] = 50_000_000,
    keep_mib: Annotated[int, Option(min=0, help="Images of scored parts kept for review, MiB; 0 for none.")] = 2048,
    *,
    settings: dict[str, Any],
) -> None:
    """Serve models over HTTP, with a page to use them; the settings below are those of models fitted there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"procon serve needs {', '.join(missing)}: pip install 'procon[server]'")
    from procon.server import app as server_app
    from procon.server.settings import MIB, Limits, Settings

    if token_file is not None:
        token = _read_token(token_file)
    server_app.serve(
        Settings(
            models=models,
            state=state,
            host=host,
            port=port,
            token=token or None,
            device=device,
            weights=settings.get("weights"),
            fit=Config(**settings),
            limits=Limits(
                body_bytes=max_body_mib * MIB,
                pixels=max_pixels,
                queue_images=queue,
                queue_seconds=queue_seconds,
                kept_bytes=keep_mib * MIB,
            ),
        ),
        lambda address: echo(f"serving {models} at {address}"),
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--token-file must be a file that can be read, got {path} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--token-file must hold a token of plain text, got the binary file {path}") from None
    if not token:
        raise ConfigError(f"--token-file must hold a token, got the empty file {path}")
    return token
