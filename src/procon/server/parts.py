"""Store verdicts and images of scored parts for review, while the disk has space."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from procon.prediction import Prediction
from procon.server.disk import describe_storage_error, write_durable, write_quick
from procon.server.models import ServedModel
from procon.server.request_errors import Redactor, RequestError
from procon.server.settings import Limits
from procon.server.store import Store
from procon.server.uploads import Header, Upload
from procon.vision.images import Picture
from procon.vision.pictures import jpeg, shrink

_log = logging.getLogger(__name__)
_THUMBNAIL = 160  # pixels
_PRUNE_EVERY = 200  # verdicts
_PROBE_BYTES = 256 * 1024  # that must fit on a disk that was full before it counts as having space


class KeptParts:
    """The stored parts; ``error`` says why none can be stored at the moment."""

    def __init__(
        self, folder: Path, store: Store, limits: Limits, redact: Redactor, on_change: Callable[[], None]
    ) -> None:
        self._folder, self._store, self._limits = folder, store, limits
        self._redact, self._on_change = redact, on_change
        self._since_pruned = 0
        self.error: str | None = None

    def keep(
        self, model: ServedModel, upload: Upload, header: Header, picture: Picture, prediction: Prediction
    ) -> int | None:
        """Store a verdict and return its number; None if the disk is full or broken: the score matters more."""
        try:
            number = self._write(model, upload, header, picture, prediction)
        except (OSError, sqlite3.Error) as error:
            self._set_error(error)
            return None
        self._set_error(None)
        return number

    def _write(
        self, model: ServedModel, upload: Upload, header: Header, picture: Picture, prediction: Prediction
    ) -> int:
        """Store a verdict and, within the limit, its image; returns the number of the verdict."""
        limits, digest = self._limits, upload.digest
        path = self._file(digest, header.ending)
        is_new = bool(limits.kept_bytes) and not path.exists()
        verdict = {
            "model": model.name,
            "revision": model.revision,
            "name": upload.name,
            "digest": digest,
            "width": picture.size[1],
            "height": picture.size[0],
            "score": prediction.score,
            "p_value": prediction.p_value,
            "threshold": prediction.threshold,
            "is_anomalous": prediction.is_anomalous,
            "regions": [region.to_dict() for region in prediction.regions],
            "thumbnail": jpeg(shrink(picture.rgb8(), _THUMBNAIL), quality=80),
        }
        image = (header.ending, len(upload.data)) if limits.kept_bytes else None
        if is_new:
            write_quick(path, upload.data)
        try:
            number = self._store.add_verdict(verdict, image)
        except sqlite3.Error:
            if is_new:  # no row would ever name it
                path.unlink(missing_ok=True)
            raise
        self._since_pruned += 1
        if self._since_pruned >= _PRUNE_EVERY:
            self._since_pruned = 0
            for unused in self._store.prune(limits.kept_bytes, limits.kept_verdicts):
                self._file(*unused).unlink(missing_ok=True)
        self._on_change()
        return number

    def _file(self, digest: str, ending: str) -> Path:
        return self._folder / digest[:2] / f"{digest}{ending}"

    def image(self, digest: str) -> tuple[bytes, str]:
        """The image file of a verdict and its ending; refused if it is no longer stored."""
        ending = self._store.image_ending(digest)
        try:
            if ending is not None:
                return self._file(digest, ending).read_bytes(), ending
        except OSError:
            pass
        raise RequestError(410, "the image of this part is no longer stored")

    def drop_model(self, model: str) -> None:
        """Delete the verdicts and feedback of a model, and the images that only they needed."""
        for unused in self._store.drop_model(model):
            self._file(*unused).unlink(missing_ok=True)

    def check_storage(self) -> None:
        """Find out whether a disk that was full has space again."""
        if self.error is not None:
            try:
                probe = self._folder / ".probe"
                write_durable(probe, bytes(_PROBE_BYTES))
                probe.unlink()
                self._store.check_writable()
            except (OSError, sqlite3.Error) as error:
                self._set_error(error)
            else:
                self._set_error(None)

    def _set_error(self, error: Exception | None) -> None:
        reason = None if error is None else self._redact(describe_storage_error(error))
        if reason != self.error:
            self.error = reason
            _log.warning("storing parts for review: %s", reason or "it works again")
            self._on_change()
