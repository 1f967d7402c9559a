"""The public class: fit builds a memory of normal patches, predict scores how badly it explains new ones."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from procon.arrays import Box
from procon.config import ThresholdRule
from procon.errors import ConfigError, ImageError
from procon.limits.measuring import measure_defects, prepare_bench
from procon.limits.report import LimitsReport
from procon.method.regions import Region
from procon.model import editing
from procon.model.editor import Editor
from procon.model.fitting import fit_model
from procon.model.kinship import describe_difference
from procon.model.rates import FalseAlarms
from procon.model.renderings import Rendering, Renderings
from procon.model.suspects import SUSPECT_LIMIT, Suspect, find_odd_images, find_suspects
from procon.model.teaching import Proposal, RegionLike, accept, forget_lessons, propose
from procon.model.training import TrainingSources, list_good
from procon.model.verdict import predict_each, predict_images
from procon.prediction import Explanation, Prediction
from procon.progress import Say, ShowProgress, reporting, say_nothing
from procon.state import DetectorState
from procon.vision.images import ImageLike, ImageLikes, Picture, open_image
from procon.vision.scope import RoiLike

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

_log = logging.getLogger(__name__)


class Detector(DetectorState):
    """Anomaly detector fitted on good images alone.

    ::

        detector = Detector(Config()).fit("parts/good")
        result = detector.predict("parts/new/0001.png")
        result.score, result.is_anomalous, result.heatmap
        detector.explain("parts/new/0001.png").normal_patches()

    Images are a path, a folder, a pattern such as ``parts/new/*.png``, a PIL image, an array, a tensor, or several of
    them. ``progress=True`` shows a bar; a callback gets the stage, the steps done and the steps in total.

    A fitted detector can be changed: ``calibrate``, ``set_threshold``, ``partial_fit``, ``forget``, ``teach`` and
    ``merge``. What it learned is ``model``, one immutable value; a change replaces it, or fails and leaves it as it
    was. Settings, model and file are in :class:`procon.state.DetectorState`.
    """

    # ------------------------------------------------------------------------------------------------------- fit

    def fit(
        self,
        images: ImageLikes,
        *,
        progress: ShowProgress = None,
        skip_bad: bool = False,
        thumbnails: bool = False,
        roi: RoiLike | None = None,
    ) -> Self:
        """Build the memory from good images: a folder (any layout ``procon check`` knows), or a list of images.

        Unreadable images raise :class:`BatchError`; ``skip_bad`` leaves them out instead. ``thumbnails`` keeps a small
        copy of each image, so that evidence can show it when the folder is gone. ``roi`` says where the part is in
        every image: a mask image, or the corners (x, y) of a polygon. Everything outside is ignored.
        """
        items = list_good(images)
        reader = self._reader_for(items)
        with reporting(progress) as on_progress:
            model, items = fit_model(reader, items, on_progress, skip_bad=skip_bad, thumbnails=thumbnails, roi=roi)
        self._reader, self.model = reader, model
        self.sources = TrainingSources(folder=self.sources.folder)
        self.sources.hold(self.model.memory.images, items)
        return self

    def suspects(self, *, limit: float = SUSPECT_LIMIT, progress: ShowProgress = None) -> list[Suspect]:
        """Every training image by how little the others explain it, worst first; those above ``limit`` are flagged.

        The images are read again from their paths. See :mod:`procon.model.suspects`.
        """
        with reporting(progress) as on_progress:
            return find_suspects(self.model, self.reader, self.sources, limit, on_progress)

    def odd_images(self, *, progress: ShowProgress = None) -> list[Suspect]:
        """The training images that were set aside for the threshold, highest score first, with their maps."""
        with reporting(progress) as on_progress:
            return find_odd_images(self.model, self.reader, self.sources, on_progress)

    def limits(
        self,
        good: ImageLikes | None = None,
        *,
        count: int | None = None,
        sizes: Sequence[int] | None = None,
        kinds: Sequence[str] | None = None,
        seed: int = 0,
        progress: ShowProgress = None,
        say: Say = say_nothing,
    ) -> LimitsReport:
        """Which rendered defects the model finds: scratches, stains, holes and foreign structures.

        They are rendered on ``good`` images that the memory does not hold, or on training images, each scored without
        its own anchors. ``count`` is their number (default: what takes eight minutes on this machine, at most 8 of
        each kind, size and contrast), ``sizes`` are in pixels, and ``kinds`` may also name "dent". ``say`` is told the
        cost before the work starts. The scores are kept with the model, so that ``save`` stores them; interrupted work
        goes on where it stopped.
        """
        with self._editor(progress) as editor:
            bench, wanted = prepare_bench(self.model, editor, good, seed, sizes, kinds, say, count)
            rows: list[Rendering] = []
            try:
                for row in measure_defects(bench, wanted, self.model.renderings):
                    rows.append(row)
                    editor.on_progress("rendering defects", len(rows), wanted)
            finally:
                renderings = Renderings(bench.plan, bench.described(), tuple(rows))
                self.model = replace(self.model, renderings=renderings)
        assert self.calibration is not None
        return LimitsReport(renderings, self.calibration)

    # --------------------------------------------------------------------------------------------------- predict

    @overload
    def predict(  # type: ignore[overload-overlap]  # arrays are one image, although they can be iterated over
        self, images: "Image | NDArray[Any] | Tensor | Picture", *, progress: ShowProgress = None
    ) -> Prediction: ...
    @overload
    def predict(self, images: str | Path, *, progress: ShowProgress = None) -> Any: ...
    @overload
    def predict(self, images: Iterable[ImageLike], *, progress: ShowProgress = None) -> list[Prediction]: ...
    def predict(self, images: ImageLikes, *, progress: ShowProgress = None) -> Any:
        """Score one image (gives a :class:`Prediction`), or a folder, pattern or list of images (gives a list of them).

        If some images cannot be used, :class:`BatchError` carries the predictions of the others.
        """
        with reporting(progress) as on_progress:
            return predict_images(self.scorer, images, on_progress)

    def predict_each(self, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
        """Predictions one by one, in order; an image that cannot be used yields its error and the rest goes on."""
        return predict_each(self.scorer, images)

    def score(self, images: ImageLikes) -> Any:
        """The image score alone: a number for one image, a list of numbers for several."""
        result = self.predict(images)
        return [prediction.score for prediction in result] if isinstance(result, list) else result.score

    def explain(
        self, image: ImageLike, xy: tuple[float, float] | None = None, region: Region | Box | None = None
    ) -> Explanation:
        """The normal patches that pixel ``xy`` of an image was compared with, by layer and bank, with their origin.

        With a ``region`` (or its box) the pixel is the peak of the heat map in it; with neither, the peak of the image.
        """
        return self.scorer.explain(open_image(image), xy, region)

    # ------------------------------------------------------------------------------------------------------ edit

    def calibrate(
        self,
        images: ImageLikes | None = None,
        *,
        false_alarm_rate: float | None = None,
        guarantee: bool | None = None,
        progress: ShowProgress = None,
    ) -> Self:
        """Compute the threshold again.

        With ``images``, good ones that the memory does not hold: a held-out calibration. With ``false_alarm_rate`` or
        ``guarantee`` alone: the present scores at that rate, or by that rule. With none: leave-one-out on the training
        images, which are read again from their paths. ``guarantee`` is True for the split-conformal promise, False for
        the robust rule, None for the rule in force.
        """
        rule: ThresholdRule | None = None if guarantee is None else "guarantee" if guarantee else "robust"
        with self._editor(progress) as editor:
            self.model = editing.calibrate(self.model, editor, images, false_alarm_rate, rule)
        return self

    def set_threshold(self, score: float) -> Self:
        """Call parts anomalous above ``score``, until the next :meth:`calibrate`."""
        self.model = editing.fix_threshold(self.model, score)
        return self

    def measure_false_alarms(self, images: ImageLikes, *, progress: ShowProgress = None) -> FalseAlarms:
        """How many good images exceed the threshold; none of them may be in the memory or behind the threshold."""
        with self._editor(progress) as editor:
            return editing.measure_false_alarms(self.model, editor, images)

    def partial_fit(
        self,
        images: ImageLikes,
        *,
        progress: ShowProgress = None,
        skip_bad: bool = False,
        thumbnails: bool | None = None,
        keep_scores: bool = False,
    ) -> Self:
        """Add good images: every bank continues its farthest-point traversal over their patches.

        The threshold is computed again, for which the training images are read from their paths; ``keep_scores``
        keeps the earlier score of an image that is gone. ``thumbnails`` defaults to what the memory has.
        """
        with self._editor(progress, keep_scores) as editor:
            self.model = editing.add(self.model, editor, images, skip_bad, thumbnails)
        return self

    def forget(
        self, images: str | Path | Iterable[str | Path], *, progress: ShowProgress = None, keep_scores: bool = False
    ) -> Self:
        """Remove training images, by name, and everything that came from them: anchors, scores, thumbnails.

        A copy of the same content under another name is removed too. The threshold is computed again. The name of a
        lesson removes that lesson; the threshold then stays as it is.
        """
        names = [images] if isinstance(images, str | Path) else list(images)
        taught = {lesson.name for lesson in self.model.lessons}
        model, rest = self.model, [name for name in names if str(name) not in taught]
        if len(rest) < len(names):
            model = forget_lessons(model, taught.intersection(map(str, names)))
        if rest or not names:
            with self._editor(progress, keep_scores) as editor:
                model = editing.forget(model, editor, rest)
        self.model = model
        return self

    def teach(
        self,
        image: ImageLike,
        region: RegionLike,
        *,
        name: str | None = None,
        force: bool = False,
        progress: ShowProgress = None,
    ) -> Proposal:
        """Mark a defect that the model missed: patches of ``region`` become defect anchors, next to the normal memory.

        ``region`` is a box (left, top, right, bottom), a :class:`Region`, or a mask of the size of the image. Returns
        the lesson with its price: how many training images more it flags, each scored without its own anchors. Over
        the false-alarm rate of the model the lesson is refused, unless ``force`` is given. The threshold stays as it
        is. :meth:`forget` takes a lesson back by its name.
        """
        proposal = self.propose_lesson(image, region, name=name, force=force, progress=progress)
        self.accept_lesson(proposal, force=force)
        return proposal

    def propose_lesson(
        self,
        image: ImageLike,
        region: RegionLike,
        *,
        name: str | None = None,
        force: bool = False,
        progress: ShowProgress = None,
    ) -> Proposal:
        """What :meth:`teach` would do, and its price. Nothing changes; the training images are read again for it.

        ``force`` gives a proposal without a price where these images are gone.
        """
        with self._editor(progress) as editor:
            return propose(self.model, editor, image, region, name, force)

    def accept_lesson(self, proposal: Proposal, *, force: bool = False) -> Self:
        """Take a proposed lesson; one that costs more than the false-alarm rate needs ``force``."""
        if proposal.base is not self.model:
            raise ConfigError("the model changed since the lesson was proposed; propose it again")
        self.model = accept(proposal, force)
        return self

    def merge(self, other: "Detector", *, progress: ShowProgress = None, keep_scores: bool = False) -> Self:
        """Take over the memory of another detector of the same part, fitted with the same settings and weights.

        A warning is logged if neither memory explains the images of the other.
        """
        with self._editor(progress, keep_scores) as editor:
            editing.check_mergeable(self.model, other.model)
            difference = describe_difference(self.scorer, other.scorer, self.sources, other.sources)
            if difference is not None:
                _log.warning("%s", difference)
            self.model = editing.merge(self.model, editor, other.model, other.sources)
        return self

    @contextmanager
    def _editor(self, progress: ShowProgress, keep_scores: bool = False) -> Iterator[Editor]:
        with reporting(progress) as on_progress:
            yield Editor(self.reader, self.sources, on_progress, keep_scores)
