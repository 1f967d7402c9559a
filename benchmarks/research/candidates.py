"""Which maps and scores the study of recipes measures. The whole list was fixed before the study ran.

A key names the values of one memory: (pixels of a square input with as many patches, block, share kept, voter).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

Key = tuple[int, str, float, str]

BASE = 0.02
PAPER: tuple[str, ...] = ("-3", "-6", "-8", "-9")
TODAY: tuple[str, ...] = ("-3", "-7", "-10")
SHARP = 4 * 392 / 672  # pixels of a map of side 392: 4 pixels of an input of 672

SETS: tuple[tuple[str, ...], ...] = (
    TODAY, PAPER, ("-3", "-6", "-9"), ("-3", "-7", "-9"), ("-3", "-6", "-10"), ("-3", "-8", "-10"), ("-5", "-7", "-10"),
    ("-3", "-5", "-7", "-9"), ("-3", "-7", "-9", "-10"), ("-3", "-6", "-9", "-10"), ("-3", "-6", "-8", "-10"),
    ("-3", "-5", "-7", "-9", "-10"), ("-3", "-7", "-9", "-11"), ("-3", "-7", "-10", "-11"),
    ("-3", "-6", "-7", "-8", "-9", "-10"), ("-3", "-5", "-6", "-7", "-8", "-9", "-10", "-11"), ("-6", "-8", "-9"),
    ("-6", "-9"), ("-7", "-9", "-10"), ("-6", "-7", "-8", "-9"), ("-5", "-7", "-9"), ("-3", "-9"),
)  # fmt: skip
"""Unions of blocks that are read at 672 pixels."""
SHORT = (
    TODAY, ("-3", "-7", "-9", "-10"), ("-3", "-6", "-7", "-8", "-9", "-10"), ("-3", "-6", "-9", "-10"),
    ("-3", "-6", "-8", "-10"), ("-3", "-8", "-10"), PAPER, ("-6", "-8", "-9"), ("-7", "-9", "-10"),
)  # fmt: skip
WIDER = tuple(layers for layers in SETS if len(layers) >= 4)  # with fewer anchors each, so that the file stays small
FEW = (TODAY, ("-3", "-6", "-9"), ("-3", "-7", "-9", "-10"))
COARSE = (("-3", "-6"), ("-6", "-9"), ("-3",), ("-3", "-6", "-9"))
"""Blocks of a second, smaller input that is mixed in."""


@dataclass(frozen=True)
class Reading:
    """A map: a weighted mean of values, less what is typical of the image, blurred."""

    name: str
    terms: tuple[tuple[Key, float], ...]
    scaled: bool = False  # each term by its mean on good images first
    offset: float = 0.0  # how much of the image's lower quartile is taken off
    bounded: float | None = None  # take no more and no less off than from good images, but for this share at each end
    blur: float = SHARP  # pixels of a map of side 392
    guide: tuple[int, float] | None = None  # radius in pixels and floor of the guided filter that follows

    @property
    def cost(self) -> tuple[frozenset[int], float]:
        """The inputs that pass the backbone, and bytes of anchors relative to one memory of Config.best()."""
        sizes = frozenset(key[0] for key, _ in self.terms)
        memories = {key[:3] for key, _ in self.terms}
        return sizes, sum(share * (size / 672) ** 2 / BASE for size, _, share in memories)


def even(keys: Sequence[Key], weight: float = 1.0) -> tuple[tuple[Key, float], ...]:
    """The same weight for each, ``weight`` for all."""
    return tuple((key, weight / len(keys)) for key in keys)


def keys(size: int, layers: Sequence[str], share: float = BASE, voter: str = "soft") -> list[Key]:
    """The values of several blocks."""
    return [(size, layer, share, voter) for layer in layers]


def label(layers: Sequence[str]) -> str:
    """Blocks in a name."""
    return ",".join(layers)


CONFIG = Reading("Config()", even(keys(392, PAPER, 0.05, "soft5")), blur=4.0)
BEST = Reading("Config.best()", even(keys(672, TODAY)), offset=1.0)


def with_tails(
    name: str,
    terms: tuple[tuple[Key, float], ...],
    blurs: Sequence[float] = (SHARP, 4.0),
    offsets: Sequence[float] = (1.0, 0.0),
    scaled: Sequence[bool] = (False,),
) -> Iterator[Reading]:
    """One mixture under several offsets and blurs."""
    for by_good, offset, blur in product(scaled, offsets, blurs):
        tail = f"{' scaled' if by_good else ''} offset={offset:g} blur={blur:.3g}"
        yield Reading(name + tail, terms, by_good, offset, blur=blur)


def map_readings() -> list[Reading]:
    """Every map of the study."""
    found = [CONFIG, BEST]
    found += _unions() + _smaller() + _mixtures() + _voters() + _sharper()
    names = [reading.name for reading in found]
    assert len(set(names)) == len(names), "two readings have one name"
    return found


def short_list() -> list[Reading]:
    """What is still in question after the whole list was read on two parts: unions, offsets and blurs."""
    found = [CONFIG, BEST]
    for layers in SHORT:
        terms, name = even(keys(672, layers)), f"672 {label(layers)}"
        found += with_tails(name, terms, (SHARP, 3.0, 4.0))
        for bound, blur in product((0.0, 0.1), (SHARP, 3.0, 4.0)):
            limit = " 10%" if bound else ""
            found.append(Reading(f"{name} offset=1 bounded{limit} blur={blur:.3g}", terms, False, 1.0, bound, blur))
    for layers in FEW:
        found += with_tails(f"672 {label(layers)} high", even(keys(672, layers, BASE, "high")), offsets=(0.0,))
        both = even(keys(672, layers) + keys(672, layers, BASE, "high"))
        found += with_tails(f"672 {label(layers)} soft and high", both, (SHARP, 4.0), (0.0,), scaled=(True,))
    return found


def _unions() -> list[Reading]:
    found: list[Reading] = []
    for layers in SETS:
        found += with_tails(f"672 {label(layers)}", even(keys(672, layers)))
        found += with_tails(f"672 {label(layers)}", even(keys(672, layers)), (SHARP,), scaled=(True,))
    for layers in WIDER:
        found += with_tails(f"672 {label(layers)} 1.2%", even(keys(672, layers, 0.012)), blurs=(SHARP,))
    for layer in ("-3", "-5", "-6", "-7", "-8", "-9", "-10", "-11"):
        found += with_tails(f"672 {layer}", even(keys(672, (layer,))), blurs=(SHARP,))
    for layers, weights in (
        (TODAY, (1, 1, 0.5)), (TODAY, (1, 1, 0.25)), (TODAY, (1, 2, 1)), (TODAY, (2, 1, 1)), (TODAY, (0.5, 1, 1)),
        (("-3", "-6", "-9", "-10"), (1, 1, 1, 0.5)), (("-3", "-7", "-9", "-10"), (1, 1, 1, 0.5)),
        (("-3", "-7", "-9", "-10"), (0.5, 1, 1, 1)),
    ):  # fmt: skip
        terms = tuple(zip(keys(672, layers), weights, strict=True))
        found += with_tails(f"672 {label(layers)} weights {':'.join(map(str, weights))}", terms, blurs=(SHARP,))
    return found


def _smaller() -> list[Reading]:
    found: list[Reading] = []
    tails = with_tails("392 paper, 5 banks", CONFIG.terms, (4.0, SHARP))
    found += [reading for reading in tails if (reading.offset, reading.blur) != (CONFIG.offset, CONFIG.blur)]
    for layers in (PAPER, TODAY, ("-3", "-6", "-9", "-10"), ("-3", "-6", "-9")):
        for share in (0.05, 0.02):
            found += with_tails(f"392 {label(layers)} {share:.0%}", even(keys(392, layers, share)), (4.0, SHARP))
    for layers in (TODAY, ("-3", "-6", "-9"), ("-3", "-7", "-9", "-10"), ("-3", "-6", "-9", "-10")):
        plain = keys(518, layers, 0.03)
        shifted = keys(518, layers, 0.03, "shifted")
        found += with_tails(f"518 {label(layers)}", even(plain), (4 * 392 / 518, SHARP))
        found += with_tails(f"518 {label(layers)} and shifted", even(plain + shifted), (4 * 392 / 518, SHARP))
    return list({reading.name: reading for reading in found}.values())


def _mixtures() -> list[Reading]:
    """Two resolutions in one map: a second input, or tokens averaged over four patches."""
    found: list[Reading] = []
    fine = (TODAY, ("-3", "-7", "-9", "-10"), ("-3", "-6", "-9"), ("-7", "-10"), ("-3", "-9"))
    for layers, coarse, share in product(fine, COARSE, (0.33, 0.5)):
        terms = even(keys(672, layers), 1 - share) + even(keys(392, coarse), share)
        found += with_tails(f"672 {label(layers)} + {share:g} of 392 {label(coarse)}", terms, (SHARP,))
    paper = even(keys(392, PAPER, 0.05), 0.5)
    found += with_tails(f"672 {label(TODAY)} + 0.5 of 392 paper 5%", even(keys(672, TODAY), 0.5) + paper)
    for layers, coarse, share in product((TODAY, ("-3", "-6", "-9")), COARSE, (0.33, 0.5)):
        terms = even(keys(518, layers, 0.03), 1 - share) + even(keys(392, coarse), share)
        found += with_tails(f"518 {label(layers)} + {share:g} of 392 {label(coarse)}", terms, (SHARP,))
    for layers, coarse, share in product(FEW, (("p-3",), ("p-6",), ("p-3", "p-6"), ("p-3", "p-9")), (0.33, 0.5)):
        terms = even(keys(672, layers), 1 - share) + even(keys(672, coarse), share)
        found += with_tails(f"672 {label(layers)} + {share:g} of pooled {label(coarse)}", terms, (SHARP,))
    return found


def _voters() -> list[Reading]:
    found: list[Reading] = []
    for layers, voter in product(FEW, ("high", "hard", "plane", "spread", "mass", "near")):
        found += with_tails(f"672 {label(layers)} {voter}", even(keys(672, layers, BASE, voter)))
        if voter != "near":
            both = even(keys(672, layers) + keys(672, layers, BASE, voter))
            found += with_tails(f"672 {label(layers)} soft and {voter}", both, (SHARP,), scaled=(True,))
    found += with_tails("672 whitened", even(keys(672, ("w-3", "w-7", "w-10"))))
    both = even(keys(672, TODAY) + keys(672, ("w-3", "w-7", "w-10")))
    found += with_tails("672 today's and whitened", both, (SHARP,), scaled=(True,))
    for radius in ("r1", "r2"):
        found += with_tails(f"RAD at 448, {radius}", even(keys(448, ("-1", "-3", "-6", "-9"), 1.0, radius)))
    for radius in ("r1", "r2"):
        found += with_tails(f"RAD at 392, {radius}", even(keys(392, ("-1", "-3", "-6", "-9"), 1.0, radius)))
    found += with_tails("RAD at 672, today's blocks", even(keys(672, TODAY, 1.0, "r2")))
    return found


def _sharper() -> list[Reading]:
    found: list[Reading] = []
    for layers in FEW:
        terms = even(keys(672, layers))
        for radius, floor in product((6, 12), (0.001, 0.01)):
            name = f"672 {label(layers)} guided {radius} {floor:g} offset=1"
            found.append(Reading(name, terms, offset=1.0, blur=1.0, guide=(radius, floor)))
    terms = even(keys(672, TODAY))
    found += with_tails(f"672 {label(TODAY)}", terms, (0.0, 1.0, 1.6, 3.0, 5.6), (1.0,))
    found += with_tails(f"672 {label(TODAY)}", terms, (SHARP, 4.0), (0.5,))
    for layers, blur in (*product(SETS, (SHARP,)), *product(FEW, (4.0,))):
        name = f"672 {label(layers)} offset=1 bounded blur={blur:.3g}"
        found.append(Reading(name, even(keys(672, layers)), offset=1.0, bounded=0.0, blur=blur))
    for layers in FEW:
        name = f"672 {label(layers)} offset=1 bounded 10% blur={SHARP:.3g}"
        found.append(Reading(name, even(keys(672, layers)), offset=1.0, bounded=0.1))
    found += with_tails(f"672 {label(TODAY)} and shifted", even(keys(672, TODAY) + keys(672, TODAY, BASE, "shifted")))
    return found


@dataclass(frozen=True)
class Scored:
    """Values whose highest patches make an image score."""

    name: str
    terms: tuple[tuple[Key, float], ...]
    scaled: bool = False


def score_readings() -> list[Scored]:
    """Every set of values that image scores and descriptors are taken from."""
    found = [Scored("Config()", CONFIG.terms), Scored("Config.best()", even(keys(672, TODAY, BASE, "high")))]
    for layers in SETS:
        for voter in ("high", "soft"):
            found.append(Scored(f"672 {label(layers)} {voter}", even(keys(672, layers, BASE, voter))))
    for layers in WIDER:
        found.append(Scored(f"672 {label(layers)} 1.2% high", even(keys(672, layers, 0.012, "high"))))
    for layers, voter in product(FEW, ("hard", "plane", "spread", "mass")):
        found.append(Scored(f"672 {label(layers)} {voter}", even(keys(672, layers, BASE, voter))))
    for layers, coarse in product(FEW, COARSE):
        terms = even(keys(672, layers, BASE, "high"), 0.67) + even(keys(392, coarse, BASE, "high"), 0.33)
        found.append(Scored(f"672 {label(layers)} + 0.33 of 392 {label(coarse)} high", terms))
    for layers in (PAPER, TODAY, ("-3", "-6", "-9", "-10")):
        found.append(Scored(f"392 {label(layers)} 5% high", even(keys(392, layers, 0.05, "high"))))
    for layers in (TODAY, ("-3", "-7", "-9", "-10")):
        found.append(Scored(f"518 {label(layers)} high", even(keys(518, layers, 0.03, "high"))))
    found += [
        Scored("672 near", even(keys(672, TODAY, BASE, "near"))),
        Scored("672 whitened high", even(keys(672, ("w-3", "w-7", "w-10"), BASE, "high"))),
        Scored("672 pooled high", even(keys(672, ("p-3", "p-6", "p-9"), BASE, "high"))),
        Scored("RAD at 448, r1", even(keys(448, ("-1", "-3", "-6", "-9"), 1.0, "r1"))),
        Scored("RAD at 448, r2", even(keys(448, ("-1", "-3", "-6", "-9"), 1.0, "r2"))),
        Scored("RAD at 392, r1", even(keys(392, ("-1", "-3", "-6", "-9"), 1.0, "r1"))),
        Scored("RAD at 392, r2", even(keys(392, ("-1", "-3", "-6", "-9"), 1.0, "r2"))),
        Scored("RAD at 672, today's blocks", even(keys(672, TODAY, 1.0, "r2"))),
    ]
    whitened = even(keys(672, ("w-3", "w-7", "w-10"), BASE, "high") + keys(672, TODAY, BASE, "high"))
    found.append(Scored("672 today's and whitened high", whitened))
    return list({one.name: one for one in found}.values())


ABLATION = (
    "Config()", "Config.best()", "392 paper, 5 banks offset=1 blur=4", "392 paper, 5 banks offset=0 blur=2.33",
    "392 -3,-7,-10 5% offset=1 blur=4", "392 -3,-7,-10 5% offset=0 blur=4", "672 -3,-6,-8,-9 offset=1 blur=2.33",
    "672 -3,-6,-8,-9 offset=0 blur=2.33", "672 -3,-6,-8,-9 offset=0 blur=4", "672 -3,-7,-10 offset=0 blur=2.33",
    "672 -3,-7,-10 offset=0 blur=4", "672 -3,-7,-9 offset=0 blur=2.33", "672 -3,-6,-9 offset=0 blur=2.33",
    "518 -3,-6,-9 offset=0 blur=3.03", "672 -3,-7,-10 + 0.5 of 392 -3,-6,-9 offset=0 blur=2.33",
    *(f"672 -{block} offset=0 blur=2.33" for block in (3, 5, 6, 7, 8, 9, 10, 11)),
)  # fmt: skip
"""Readings that are also measured by kind of defect."""
