"""Settings of a server: where the models are, which device it uses, and how much it accepts."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from procon.config import Config
from procon.deploy.manifest import is_exported
from procon.errors import ConfigError
from procon.hosts import is_loopback

ENDING = ".procon"
MIB = 2**20

# No separators, no leading dot, no space at an end: a path that means the same to every file system.
NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9._-])?$"
NAME_RULE = (
    "a model name must have 1 to 64 letters, digits, spaces, '.', '-' and '_', starting with a letter or digit and not "
    "ending with a space"
)


@dataclass(frozen=True)
class Limits:
    """Limits on everything that clients send and the server stores."""

    body_bytes: int = 32 * MIB  # of one image file
    fit_bytes: int = 2048 * MIB  # of all images of one fit
    fit_images: int = 2000
    pixels: int = 50_000_000  # of one image; checked before it is decoded
    queue_images: int | None = None  # being decoded, waiting or being scored; None is 32, and 128 on a GPU
    queue_seconds: float = 1.0  # of work that may wait while requests are being refused; at least an image per core
    queue_bytes: int = 2048 * MIB  # of the pixels and heat maps of the images in the queue
    arriving_bodies: int = 512  # request bodies being received at a time
    arriving_bytes: int = 4096 * MIB  # received of requests that have no response yet
    read_seconds: float = 60.0  # in which a client must send one image; a form of many has ten times as long
    least_rate: int = 16 * 1024  # bytes per second that a client must send, and read, on average
    connections: int = 2048
    header_seconds: float = 10.0  # in which a client must send the headers of a request
    header_bytes: int = 64 * 1024
    unread_bytes: int = 512 * MIB  # of answers that wait in memory for slow readers
    waiting_jobs: int = 32
    kept_bytes: int = 2048 * MIB  # of images of scored parts on disk; the oldest are deleted first, 0 stores none
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

    models: Path  # a folder of .procon files and folders from `procon export`, or one of them
    state: Path | None = None  # for the database, uploads and training images; default: a hidden folder by the models
    host: str = "127.0.0.1"
    port: int = 8321
    token: str | None = field(default=None, repr=False)  # must be in every request, as Authorization: Bearer TOKEN
    device: str = "auto"
    weights: str | None = None  # of the backbone, for models that do not find their own
    fit: Config = field(default_factory=Config)  # settings of models fitted here
    limits: Limits = field(default_factory=Limits)
    batch: int = 64  # largest group of images on a GPU; a CPU always scores one at a time
    window_seconds: float = 0.003  # how long the first image of a group waits for others
    scan_seconds: float = 1.0  # how often the folder is checked for changed models

    def __post_init__(self) -> None:
        if not self.models.exists():
            raise ConfigError(f"{self.models}: no such folder or model file; make the folder, or a model: procon fit")
        if self.models.is_file() and self.models.suffix != ENDING:
            raise ConfigError(f"{self.models}: must be a folder or a {ENDING} file")
        if self.only is not None and not re.fullmatch(NAME_PATTERN, self.only):
            raise ConfigError(f"{self.models}: {NAME_RULE}; rename it")
        if self.token is not None and len(self.token) < 16:
            raise ConfigError(f"a token must have at least 16 characters, got {len(self.token)}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines and needs a token: --token-file FILE, or the "
                "variable PROCON_TOKEN"
            )

    @property
    def folder(self) -> Path:
        """The folder that contains the models."""
        return self.models.absolute().parent if self.only is not None else self.models.absolute()

    @property
    def only(self) -> str | None:
        """Name of the one model that is served, where a file or an exported folder was given."""
        if is_exported(self.models):
            return self.models.absolute().name
        return self.models.stem if self.models.is_file() else None

    @property
    def state_folder(self) -> Path:
        """The folder of everything but the models."""
        return (self.state or self.folder / ".procon-serve").absolute()
