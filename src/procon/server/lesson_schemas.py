"""The shapes of requests and responses about lessons; OpenAPI is generated from them."""

from typing import Annotated

from pydantic import BaseModel, Field

from procon.server.schemas import BoxShares, JobAnswer

Pixel = Annotated[int, Field(ge=0, le=10**6, strict=True)]


class NewLesson(BaseModel, extra="forbid"):
    """A defect that was missed, marked on the part."""

    box: tuple[Pixel, Pixel, Pixel, Pixel] = Field(description="left, top, right, bottom in pixels of the part")
    force: bool = Field(
        default=False, description="Go on where the price cannot be told: the training images are gone."
    )


class AcceptLesson(BaseModel, extra="forbid"):
    """The decision for a lesson whose price is known."""

    force: bool = Field(default=False, description="Accept a price above the false-alarm rate of the model.")


class PricedImageAnswer(BaseModel):
    """A training image that the lesson would flag, scored without its own anchors."""

    name: str
    score_before: float
    score_after: float
    picture: str | None = Field(description="The patch most like the defect, a data: URL; null if it is gone.")
    inner: BoxShares | None


class LessonPriceAnswer(BaseModel):
    """What a lesson costs."""

    job: JobAnswer
    part: str = Field(description="Name of the part on which the defect was marked.")
    is_known: bool = Field(default=False, description="Whether there is a price to decide about.")
    sentences: list[str] = []
    score_before: float | None = Field(default=None, description="Of the part, without the lesson.")
    score_after: float | None = None
    is_too_high: bool = Field(default=False, description="It needs force: more false alarms than the rate allows.")
    added: list[PricedImageAnswer] = Field(default=[], description="Training images that only the lesson flags.")
