"""The shapes of responses and of JSON requests; OpenAPI is generated from them."""

from typing import Literal

from pydantic import BaseModel, Field

from procon.arrays import Box
from procon.config import LOWEST_RATE, ThresholdRule
from procon.method.regions import Region
from procon.server.settings import NAME_PATTERN

BoxShares = tuple[float, float, float, float]


class Problem(BaseModel):
    """Why a request was refused."""

    error: str


class Status(BaseModel):
    """Whether the server works."""

    status: str
    problems: list[str] = Field(default=[], description="What does not work while images are still scored.")


class FloatMap(BaseModel):
    """A heat map, reduced in size: float32, little-endian, row by row, base64."""

    width: int
    height: int
    data: str


class _ScoredAnswer(BaseModel):
    model: str
    revision: str
    name: str
    score: float
    relative_score: float | None = Field(
        description="score / threshold: above 1 is anomalous, for every model; null without a threshold above 0."
    )
    p_value: float | None
    threshold: float | None = Field(description="The threshold when the image was scored.")
    is_anomalous: bool | None = Field(description="The verdict when the image was scored; null without a threshold.")
    width: int
    height: int
    regions: list[Region]


class PredictionAnswer(_ScoredAnswer):
    """The prediction for one image."""

    id: int | None = Field(description="Number of the verdict, or null if it was not stored.")
    not_kept: str | None = Field(description="Why it could not be stored for review, although that was asked for.")
    pixel_threshold: float | None
    median_patch_score: float | None = Field(description="Median patch score of the image.")
    map: FloatMap | None = None
    seconds: float


class VerdictAnswer(_ScoredAnswer):
    """A part that was scored earlier."""

    id: int
    at: float
    has_image: bool
    feedback: int | None
    label: Literal["good", "defect"] | None
    feedback_state: str | None
    feedback_reason: str | None
    score_after: float | None = Field(description="Its score since it was learned.")


class VerdictsAnswer(BaseModel):
    """Verdicts, latest first."""

    verdicts: list[VerdictAnswer]


class NormalPatchAnswer(BaseModel):
    """A training patch that the patch was compared with."""

    image: str
    number: int
    box: Box
    weight: float
    distance: float
    picture: str | None = Field(description="The patch with its surroundings, a data: URL; null if it is gone.")
    inner: BoxShares | None = Field(description="The patch in that picture, as fractions of its width and height.")
    missing: str | None = None


class LayerAnswer(BaseModel):
    """The evidence of one layer about the patch."""

    blocks: list[int]
    residual: float
    residuals: list[float]
    contribution: float


class LessonEvidenceAnswer(BaseModel):
    """The marked defect that raised the score of the patch."""

    lesson: str
    image: str
    box: Box
    distance: float = Field(description="From the patch to the marked one.")
    normal_distance: float = Field(description="From the patch to the nearest normal anchors.")
    gain: float = Field(description="What the score of the patch was multiplied by.")
    picture: str = Field(description="The marked patch with its surroundings, a data: URL.")
    inner: BoxShares


class ExplanationAnswer(BaseModel):
    """Why a patch has its score."""

    model: str
    revision: str
    xy: tuple[int, int]
    patch: tuple[int, int] = Field(description="row, column")
    box: Box
    score: float
    typical: float | None = Field(description="Score of a typical good patch of this model.")
    picture: str
    inner: BoxShares
    layers: list[LayerAnswer]
    normal_patches: list[NormalPatchAnswer]
    lesson: LessonEvidenceAnswer | None = Field(description="Null if no lesson raised this score.")


class RenderedAnswer(BaseModel):
    """The rendered defects that a threshold finds; they are not real ones."""

    found: int
    total: int
    half_from: float | None = Field(description="Size in pixels from which half are found; null: beyond those tried.")


class OfferAnswer(BaseModel):
    """A false-alarm rate with the threshold it leads to."""

    rule: ThresholdRule
    false_alarm_rate: float
    score: float
    above: int = Field(description="Good images that score above it.")
    rendered: RenderedAnswer | None = Field(description="Null before `procon limits`.")


class GoodImageAnswer(BaseModel):
    """A good image behind the threshold."""

    number: int = Field(description="Its position, for /good-images/{number}/picture.")
    name: str
    score: float
    deviations: float | None = Field(description="Robust standard deviations above the median; null if those are 0.")
    set_aside: bool = Field(description="Whether it is so far above the rest that the robust rule sets it aside.")


class DecidingImageAnswer(GoodImageAnswer):
    """A good image without which the threshold would be another."""

    threshold_without: float


class GoodImagesAnswer(BaseModel):
    """The good images behind the threshold, highest score first."""

    images: list[GoodImageAnswer]


class ThresholdAnswer(BaseModel):
    """The threshold of a model and its false-alarm rate."""

    score: float
    rule: ThresholdRule = Field(description="robust: aims at the rate; guarantee: promises it, as far as it can.")
    pixel: float
    typical: float
    usual_peak: float = Field(description="Heat-map value that few good images reach: painted strongly.")
    by_hand: bool
    kind: str
    guaranteed: bool
    false_alarm_rate: float
    promised_rate: float
    rate_at_95_percent_confidence: float
    good_scores: list[float] = Field(description="Scores of the good images it was computed from, ascending.")
    offers: list[OfferAnswer] = Field(description="By rule, then by ascending rate.")
    rendered: RenderedAnswer | None = Field(description="Of the threshold in force; null before `procon limits`.")
    set_aside: list[GoodImageAnswer] = Field(description="Odd images: far above the rest, highest score first.")
    decided_by: list[DecidingImageAnswer] = Field(
        description="The images without which it would change, largest change first; none if it was set by hand."
    )
    score_without_odd: float = Field(description="The robust threshold at this rate, for which these are set aside.")
    score_with_odd: float = Field(description="The robust threshold at this rate if they were not.")
    sentences: list[str]


class ChangeAnswer(BaseModel):
    """An entry in the history of a model."""

    when: str
    what: str
    count: int
    note: str = ""


class LessonAnswer(BaseModel):
    """A lesson that a model has: a marked defect whose like it looks for."""

    name: str
    box: Box
    sentence: str


class ModelAnswer(BaseModel):
    """One model."""

    name: str
    revision: str | None = None
    error: str | None = Field(description="Why its file cannot be loaded; an earlier version may still be served.")
    exported: str | None = Field(
        default=None, description="Runtime and precision of an exported model, which can only score images."
    )
    backbone: str | None = None
    image_size: tuple[int, int] | None = None
    images: int = 0
    anchors: int = 0
    loaded: float | None = None
    threshold: ThresholdAnswer | None = None
    lessons: list[LessonAnswer] = []
    history: list[ChangeAnswer] = []
    verdicts: int = 0
    waiting: int = Field(default=0, description="Parts above the threshold that nobody has reviewed.")


class ModelsAnswer(BaseModel):
    """All models."""

    models: list[ModelAnswer]
    can_fit: bool


class JobAnswer(BaseModel):
    """Work that takes longer than a request."""

    id: int
    kind: Literal["fit", "learn", "teach"]
    model: str
    state: Literal["queued", "running", "finishing", "done", "failed", "cancelled"]
    at: float
    finished: float | None
    reason: str | None
    images: int
    stage: str | None
    done: int
    total: int


class JobsAnswer(BaseModel):
    """Jobs, latest first."""

    jobs: list[JobAnswer]


class FeedbackAnswer(BaseModel):
    """What a person said about an image, and its state."""

    id: int
    model: str
    label: Literal["good", "defect"]
    state: Literal["pending", "learned", "failed", "noted", "forgetting", "withdrawn"]
    reason: str | None
    score_before: float | None
    score_after: float | None


class PartialFitAnswer(BaseModel):
    """Images that were accepted; they are learned in the background."""

    feedback: list[FeedbackAnswer]


class ThresholdByScore(BaseModel, extra="forbid"):
    """A threshold set by hand."""

    score: float = Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)


class ThresholdByRate(BaseModel, extra="forbid"):
    """The threshold for a false-alarm rate, as far as the number of good images supports it."""

    false_alarm_rate: float = Field(ge=LOWEST_RATE, lt=1, strict=True)
    rule: ThresholdRule | None = Field(default=None, description="How scores make a threshold; null: as now.")


class NewName(BaseModel, extra="forbid"):
    """Another name for a model."""

    name: str = Field(pattern=NAME_PATTERN)


class PromiseAnswer(BaseModel):
    """What a fit on so many good images could promise, in sentences."""

    sentences: list[str]


class NewFeedback(BaseModel, extra="forbid"):
    """Whether the part was good."""

    label: Literal["good", "defect"]
