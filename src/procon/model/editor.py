"""What an edit of a model works with: a reader of images, and the training images, which are scored again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from procon.errors import ImageError
from procon.model.calibration import GoodScore
from procon.model.fitting import leave_one_out, needs_measuring
from procon.model.memory import Memory
from procon.model.model import Model
from procon.model.reader import EmbeddedImage, Reader
from procon.model.training import TrainingSources
from procon.model.training_image import TrainingImage
from procon.progress import Progress
from procon.vision.images import ImageLike


@dataclass(frozen=True)
class Editor:
    """What an edit needs besides the model: a reader of images, and where the training images are."""

    reader: Reader
    sources: TrainingSources
    on_progress: Progress
    keep_scores: bool = False  # whether a missing training image keeps its earlier score, which is approximate

    def embed(self, sources: Sequence[ImageLike]) -> Iterator[EmbeddedImage | None]:
        """The embedded images behind ``sources``; None where a source is an error."""
        embedded = self.reader.embed_each([source for source in sources if not isinstance(source, ImageError)])
        for source in sources:
            yield None if isinstance(source, ImageError) else next(embedded)

    def leave_one_out(
        self, memory: Memory, sources: Sequence[ImageLike], previous: Sequence[GoodScore | None] = ()
    ) -> tuple[Memory, list[GoodScore] | None]:
        """:func:`procon.model.fitting.leave_one_out` on training images that are read again from ``sources``."""
        with self.reader.store_embedded(self.embed(sources), len(sources)) as images:
            return leave_one_out(self.reader, memory, images, self.on_progress, previous=previous)

    def score_new(
        self,
        memory: Memory,
        sources: Sequence[ImageLike],
        previous: Sequence[GoodScore | None] = (),
        marked: Sequence[Tensor] | None = None,
    ) -> Iterator[GoodScore]:
        """The scores of images that the memory does not hold; the ``previous`` one where a source is an error.

        A threshold rests on scores without ``marked`` defects: lessons only ever raise scores above it.
        """
        reader = self.reader
        for number, image in enumerate(self.embed(sources)):
            if image is None:
                score = previous[number]
                assert score is not None
            else:
                features, size = image
                reading = reader.score_features(features, size, memory, marked)
                (score,) = reader.good_scores(reading, reader.scope(size, memory.roi))
            yield score
            self.on_progress("calibrating", number + 1, len(sources))

    def calibration_sources(self, model: Model, images: Sequence[TrainingImage]) -> list[ImageLike]:
        """Images to calibrate on again. A missing one is refused, or leaves its error there with ``keep_scores``."""
        if self.keep_scores and model.calibration is not None:
            return self.sources.find(images)
        why = "images behind the threshold cannot be read again, so it cannot follow the memory"
        try:
            return self.sources.find_all(images, why)
        except ImageError as error:
            remedy = "or keep the scores they had, which is approximate: keep_scores (--keep-scores)"
            raise ImageError(f"{error}; {remedy}") from None

    def measuring_sources(self, model: Model, images: Sequence[TrainingImage]) -> list[ImageLike]:
        """Training images to read again where scores depend on how the memory reads them; otherwise none."""
        if not needs_measuring(model.config):
            return []
        why = "training images cannot be read again, and with these settings scores depend on how the changed memory"
        return self.sources.find_all(images, f"{why} reads them")
