"""The shapes of answers and of JSON that is sent; OpenAPI is made from them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Problem(BaseModel):
    """Why a request was refused."""

    error: str


class Box(BaseModel):
    """A region of the heat map, in pixels of the image; right and bottom are exclusive."""

    box: tuple[int, int, int, int] = Field(description="left, top, right, bottom")
    area: int
    peak: float
    mean: float
    level: float


class FloatMap(BaseModel):
    """A heat map made small: float32, little-endian, row by row, base64."""

    width: int
    height: int
    data: str


class PredictionAnswer(BaseModel):
    """What the model says about one image."""

    id: int | None = Field(description="Number of the verdict, or null where it was not kept.")
    model: str
    revision: str
    name: str
    score: float
    p_value: float | None
    is_anomalous: bool | None = Field(description="Null where the model has no threshold.")
    threshold: float | None
    pixel_threshold: float | None
    median_patch_score: float | None = Field(description="Median patch score of the image.")
    width: int
    height: int
    regions: list[Box]
    map: FloatMap | None = None
    seconds: float


class NormalPatchAnswer(BaseModel):
    """A training patch that the patch was compared with."""

    image: str
    number: int
    box: tuple[int, int, int, int]
    weight: float
    distance: float
    picture: str | None = Field(description="The patch with its surroundings, a data: URL; null where it is gone.")
    inner: tuple[float, float, float, float] | None = Field(description="The patch in that picture, as shares of it.")
    missing: str | None = None


class LayerAnswer(BaseModel):
    """What one layer has to say about the patch."""

    blocks: list[int]
    residual: float
    residuals: list[float]
    contribution: float


class ExplanationAnswer(BaseModel):
    """Why a patch has its score."""

    model: str
    revision: str
    xy: tuple[int, int]
    patch: tuple[int, int] = Field(description="row, column")
    box: tuple[int, int, int, int]
    score: float
    typical: float | None = Field(description="Score of a typical good patch of this model.")
    picture: str
    inner: tuple[float, float, float, float]
    layers: list[LayerAnswer]
    normal_patches: list[NormalPatchAnswer]


class ThresholdAnswer(BaseModel):
    """The threshold of a model and what it can promise."""

    score: float
    pixel: float
    typical: float
    by_hand: bool
    kind: str
    guaranteed: bool
    false_alarm_rate: float
    promised_rate: float
    rate_at_95_percent_confidence: float
    good_scores: list[float] = Field(description="Scores of the good images behind it, ascending.")
    sentences: list[str]


class ChangeAnswer(BaseModel):
    """An entry of a model's log."""

    when: str
    what: str
    count: int
    note: str


class ModelAnswer(BaseModel):
    """One model."""

    name: str
    revision: str | None
    error: str | None = Field(description="Why its file cannot be loaded; an earlier one may still be served.")
    exported: str | None = Field(
        default=None,
        description="Runtime and precision of an exported model, which scores images and can do nothing else.",
    )
    backbone: str | None = None
    image_size: tuple[int, int] | None = None
    images: int = 0
    anchors: int = 0
    loaded: float | None = None
    threshold: ThresholdAnswer | None = None
    history: list[ChangeAnswer] = []
    verdicts: int = 0
    waiting: int = Field(default=0, description="Parts above the threshold that nobody has looked at.")


class ModelsAnswer(BaseModel):
    """All models."""

    models: list[ModelAnswer]
    can_fit: bool


class VerdictAnswer(BaseModel):
    """A part that was scored earlier."""

    id: int
    model: str
    revision: str
    at: float
    name: str
    width: int
    height: int
    score: float
    p_value: float | None
    threshold: float | None = Field(description="The threshold of that time.")
    is_anomalous: bool | None = Field(description="The verdict of that time.")
    regions: list[Box]
    has_image: bool
    feedback: int | None
    label: Literal["good", "defect"] | None
    feedback_state: str | None
    feedback_reason: str | None
    score_after: float | None = Field(description="Its score since it was learned.")


class VerdictsAnswer(BaseModel):
    """Verdicts, latest first."""

    verdicts: list[VerdictAnswer]


class JobAnswer(BaseModel):
    """Work that takes longer than a request."""

    id: int
    kind: Literal["fit", "learn"]
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
    """What a person said about an image, and what became of it."""

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


class Status(BaseModel):
    """Whether the server works."""

    status: str


class ByScore(BaseModel):
    """A threshold set by hand."""

    model_config = ConfigDict(extra="forbid")

    score: float = Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)


class ByRate(BaseModel):
    """The threshold that at most this share of good parts exceeds, as far as the number of images can promise it."""

    model_config = ConfigDict(extra="forbid")

    false_alarm_rate: float = Field(ge=1e-6, lt=1, strict=True)


class NewFeedback(BaseModel):
    """Whether the part was good."""

    model_config = ConfigDict(extra="forbid")

    label: Literal["good", "defect"]
