"""Every error ProCon raises on purpose.

::

    ProconError                 something a user can act on; the command line exits with 2
    ├── ConfigError             a setting out of range                     (also a ValueError)
    ├── ImageError              one image cannot be used                   (also a ValueError)
    ├── BatchError              several images cannot be used; carries what the others gave
    ├── WeightsError            backbone weights missing, unreadable or of the wrong shape
    ├── ModelFileError          a .procon file that is truncated, corrupt, too new or mismatched
    ├── NotFittedError          predict or save before fit
    ├── OutputError             a file cannot be written                   (also an OSError)
    └── MissingExtraError       an optional dependency; names the pip command
"""

from collections.abc import Mapping, Sequence
from typing import Any

from procon.names import show_text


class ProconError(Exception):
    """Base of all errors with a message meant for the user; names of files in it are safe to print."""

    def __str__(self) -> str:
        return show_text(super().__str__())


class ConfigError(ProconError, ValueError):
    """A setting has a value that cannot work."""


class ImageError(ProconError, ValueError):
    """One image cannot be used; the message names it and says what to do."""


class BatchError(ProconError):
    """Some images of a batch failed.

    ``errors`` maps positions in the input to errors; ``results`` are in input order, None at those positions.
    """

    def __init__(self, errors: Mapping[int, ImageError], results: Sequence[Any] = ()) -> None:
        self.errors = dict(errors)
        self.results = list(results)
        lines = "\n".join(f"  - {error}" for error in self.errors.values())
        count = len(self.errors)
        super().__init__(f"{count} image{'s' if count > 1 else ''} cannot be used:\n{lines}")


class WeightsError(ProconError):
    """Backbone weights cannot be found, read or used."""


class ModelFileError(ProconError):
    """A model file cannot be loaded; the message says which defect it has."""


class NotFittedError(ProconError):
    """The detector has no memory yet."""


class OutputError(ProconError, OSError):
    """A file cannot be written; the message names it and says what to do."""

    def __str__(self) -> str:
        return show_text(str(self.args[-1]))


class MissingExtraError(ProconError, ImportError):
    """An optional dependency is not installed; the message holds the pip command."""
