"""What a server is told when it starts: where models lie, what it may use, and how much it accepts."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from procon.config import Config
from procon.deploy.manifest import is_exported
from procon.errors import ConfigError

ENDING = ".procon"
MIB = 2**20

# No separators, no leading dot, nothing a shell or a file system reads in its own way.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


@dataclass(frozen=True)
class Limits:
    """Bounds of everything that comes from outside."""

    body_bytes: int = 32 * MIB
    """One image, as it is sent."""
    fit_bytes: int = 2048 * MIB
    """All images of one fit."""
    fit_images: int = 2000
    pixels: int = 50_000_000
    """Of one image; checked before it is decoded."""
    queue_images: int | None = None
    """Images that are being received, waiting or being scored; None is 32, and 128 on a GPU."""
    queue_seconds: float = 1.0
    """In a rush, when some had to be refused: work for the device that may wait, at least one image for each core."""
    queue_bytes: int = 2048 * MIB
    """What their pixels and maps need in memory."""
    waiting_jobs: int = 32
    read_seconds: float = 60.0
    """Time a client has to send one image."""
    kept_bytes: int = 2048 * MIB
    """Images of scored parts on disk; the oldest go first. 0 keeps none."""
    kept_verdicts: int = 20_000

    def __post_init__(self) -> None:
        for name, least in (("body_bytes", 1024), ("pixels", 14 * 14), ("queue_images", 1), ("kept_bytes", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if not self.queue_seconds > 0:
            raise ConfigError(f"queue_seconds must be above 0, got {self.queue_seconds}")


@dataclass(frozen=True)
class Settings:
    """How a server runs."""

    models: Path
    """A folder of ``.procon`` files and folders from ``procon export``, or one of them."""
    state: Path | None = None
    """Folder of the database, uploads and training images; default: a hidden one beside the models."""
    host: str = "127.0.0.1"
    port: int = 8321
    token: str | None = field(default=None, repr=False)
    """Asked of every request, as ``Authorization: Bearer TOKEN``."""
    device: str = "auto"
    weights: str | None = None
    """Backbone weights, where a model does not find its own."""
    fit: Config = field(default_factory=Config)
    """Settings of models fitted here."""
    limits: Limits = field(default_factory=Limits)
    batch: int = 64
    """Images that pass a GPU together; a CPU always takes one."""
    window_seconds: float = 0.003
    """How long the first of them waits for others."""
    scan_seconds: float = 1.0
    """How often the folder is looked at for changed models."""

    def __post_init__(self) -> None:
        if not self.models.exists():
            raise ConfigError(f"{self.models}: no such folder or model file; make the folder, or a model: procon fit")
        if self.models.is_file() and self.models.suffix != ENDING:
            raise ConfigError(f"{self.models}: must be a folder or a {ENDING} file")
        if self.only is not None and not re.match(NAME_PATTERN, self.only):
            raise ConfigError(f"{self.models}: {name_rule()}; rename it")
        if self.token is not None and len(self.token) < 16:
            raise ConfigError(f"a token must have at least 16 characters, got {len(self.token)}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines and needs a token: --token-file FILE, or the "
                "variable PROCON_TOKEN"
            )

    def queue_images(self, cuda: bool) -> int:
        """Images accepted at a time."""
        return self.limits.queue_images or (2 * self.batch if cuda else 32)

    @property
    def folder(self) -> Path:
        """Where the models lie."""
        return self.models.absolute().parent if self.only is not None else self.models.absolute()

    @property
    def only(self) -> str | None:
        """The one model that is served, where a file or an exported folder was given."""
        if is_exported(self.models):
            return self.models.absolute().name
        return self.models.stem if self.models.is_file() else None

    @property
    def state_folder(self) -> Path:
        """Where everything but the models lies."""
        return (self.state or self.folder / ".procon-serve").absolute()


def name_rule() -> str:
    """What a model may be called, for people."""
    return "a model name must have 1 to 64 letters, digits, '.', '-' and '_', starting with a letter or digit"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
