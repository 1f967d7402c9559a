"""Which inputs, memories and values a run of :mod:`research.study` reads: all of them on a GPU, a few on two cores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from research import candidates
from research.candidates import BASE, Key, Reading
from research.voters import VOTERS


@dataclass(frozen=True)
class Plan:
    """Memories of one input size, and what is read from them."""

    size: int
    blocks: tuple[str, ...]
    share: float
    voters: tuple[str, ...]
    banks: int = 1
    window: bool = False
    shifted: tuple[str, ...] = ()


DEEP = ("-3", "-5", "-6", "-7", "-8", "-9", "-10", "-11")


@dataclass(frozen=True)
class Scope:
    """What a run reads."""

    blocks: Mapping[int, tuple[int, ...]]  # of each input size
    plans: tuple[Plan, ...]
    rad: tuple[tuple[int, tuple[str, ...], tuple[int, ...]], ...]  # size, blocks and radii of RAD's readout
    extra: Mapping[int, Mapping[str, tuple[int, ...]]]  # whitened, pooled and shifted blocks of a size
    context: int  # the size whose CLS tokens retrieve images
    precision: Literal["fp32", "bf16"]
    drawn: int  # good images that get each kind of defect
    readings: Callable[[], list[Reading]] = candidates.map_readings

    def keys(self) -> set[Key]:
        """The values that it has."""
        found: set[Key] = set()
        for plan in self.plans:
            banks = "" if plan.banks == 1 else str(plan.banks)
            for block in plan.blocks:
                names = [f"{voter}{banks}" for voter in plan.voters]
                names += ["near"] * plan.window + ["shifted"] * (block in plan.shifted)
                found |= {(plan.size, block, plan.share, name) for name in names}
        for size, blocks, radii in self.rad:
            found |= {(size, block, 1.0, f"r{radius}") for block in blocks for radius in radii}
        return found

    def can_read(self, terms: Sequence[tuple[Key, float]]) -> bool:
        """Whether a reading of these terms can be made."""
        return {key for key, _ in terms} <= self.keys()


FULL = Scope(
    blocks={
        672: (-11, -10, -9, -8, -7, -6, -5, -3),
        518: (-10, -9, -7, -6, -3),
        448: (-9, -6, -3, -1),
        392: (-10, -9, -8, -7, -6, -3),
    },
    plans=(
        Plan(672, ("-3", "-6", "-7", "-9", "-10"), BASE, VOTERS, window=True, shifted=candidates.TODAY),
        Plan(672, ("-5", "-8", "-11"), BASE, ("soft", "high")),
        Plan(672, ("-3", "-5", "-6", "-7", "-8", "-9", "-10", "-11"), 0.012, ("soft", "high")),
        Plan(672, ("p-3", "p-6", "p-9", "w-3", "w-7", "w-10"), BASE, ("soft", "high")),
        Plan(518, ("-3", "-6", "-7", "-9", "-10"), 0.03, ("soft", "high"), shifted=("-3", "-6", "-7", "-9", "-10")),
        Plan(392, ("-3", "-6", "-7", "-8", "-9", "-10"), 0.05, ("soft", "high")),
        Plan(392, ("-3", "-6", "-7", "-8", "-9", "-10"), BASE, ("soft", "high")),
        Plan(392, candidates.PAPER, 0.05, ("soft",), banks=5),
    ),
    rad=((448, ("-1", "-3", "-6", "-9"), (1, 2)), (672, candidates.TODAY, (2,))),
    extra={
        672: {"whitened": (-3, -7, -10), "pooled": (-3, -6, -9), "shifted": (-3, -7, -10)},
        518: {"shifted": (-10, -9, -7, -6, -3)},
    },
    context=448,
    precision="fp32",
    drawn=12,
)
LIGHT = Scope(
    blocks={672: (-10, -9, -8, -7, -6, -5, -3), 392: (-10, -9, -8, -7, -6, -3, -1)},
    plans=(
        Plan(672, candidates.TODAY, BASE, VOTERS, window=True),
        Plan(672, ("-5", "-6", "-8", "-9"), BASE, ("soft", "high")),
        Plan(392, ("-3", "-6", "-7", "-8", "-9", "-10"), 0.05, ("soft", "high")),
        Plan(392, candidates.PAPER, 0.05, ("soft",), banks=5),
    ),
    rad=((392, ("-1", "-3", "-6", "-9"), (1, 2)),),
    extra={},
    context=392,
    precision="bf16",
    drawn=2,
)
"""What two cores can do."""
NINE = Scope(
    blocks={672: (-10, -9, -8, -7, -6, -3), 392: (-9, -8, -6, -3)},
    plans=(
        Plan(672, ("-3", "-6", "-7", "-8", "-9", "-10"), BASE, ("soft", "high")),
        Plan(392, candidates.PAPER, 0.05, ("soft",), banks=5),
    ),
    rad=(),
    extra={},
    context=672,
    precision="bf16",
    drawn=8,
    readings=candidates.short_list,
)
"""What is left after two parts, cable and pill, were read in full; what two cores can do on all nine."""
OFFSET = Scope(
    blocks={672: (-10, -7, -3)},
    plans=(Plan(672, candidates.TODAY, BASE, ("soft",)),),
    rad=(),
    extra={},
    context=672,
    precision="bf16",
    drawn=1,
)
"""The map of Config.best() alone: what its offset does."""
SCOPES = {"full": FULL, "nine": NINE, "light": LIGHT, "offset": OFFSET}
