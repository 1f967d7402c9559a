"""Shares, intervals, monotone fits and blind places, against slow references."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procon.limits.statistics import (
    CONFIDENCE_Z,
    MAP_CELLS,
    Count,
    find_blind_zones,
    is_blind,
    judge_visibility,
    map_found,
    rising_fit,
    size_reaching,
    wilson,
)
from procon.model.renderings import HostImage, Rendering, RenderingPlan, Renderings

COUNTS = st.integers(1, 12).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


def make_renderings(rows: list[Rendering], sizes: tuple[int, ...] = (3, 10, 30)) -> Renderings:
    plan = RenderingPlan(0, ("scratch", "stain"), sizes, (10, 60), False, False, 300)
    hosts = (HostImage("a.png", "file:a", (100, 200), 0.2), HostImage("b.png", "file:b", (100, 200), 0.6))
    return Renderings(plan, hosts, tuple(rows))


def rendering(score: float | None, size: int = 10, **changes: Any) -> Rendering:
    return Rendering("scratch", size, 10, 0, (100, 50), None, score)._replace(**changes)


@given(COUNTS)
def test_the_ends_of_the_interval_solve_the_score_equation(count: tuple[int, int]) -> None:
    found, total = count
    low, high = wilson(found, total)
    assert 0 <= low <= found / total <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            deviation = CONFIDENCE_Z * math.sqrt(end * (1 - end) / total)
            assert abs(found / total - end) == pytest.approx(deviation, abs=1e-9)
    assert (low == 0) == (found == 0) and (high == 1) == (found == total)


def test_nothing_tried_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert math.isnan(Count(0, 0).share)


@given(st.lists(COUNTS, min_size=1, max_size=7))
def test_the_fit_is_that_of_the_maximum_of_minima(counts: list[tuple[int, int]]) -> None:
    n = len(counts)

    def mean(first: int, last: int) -> float:
        return sum(c[0] for c in counts[first : last + 1]) / sum(c[1] for c in counts[first : last + 1])

    expected = [max(min(mean(j, k) for k in range(i, n)) for j in range(i + 1)) for i in range(n)]
    assert rising_fit([Count(*count) for count in counts]) == pytest.approx(expected)


def test_a_size_that_was_not_tried_takes_the_share_of_the_smaller_one() -> None:
    assert rising_fit([Count(1, 4), Count(0, 0), Count(3, 4)]) == [0.25, 0.25, 0.75]


def test_the_size_is_read_between_sizes_on_a_logarithmic_scale() -> None:
    assert size_reaching(0.5, (4, 16), (0.0, 1.0)) == pytest.approx(8)
    assert size_reaching(0.5, (4, 16), (0.5, 1.0)) == 4
    assert size_reaching(0.9, (4, 16), (0.5, 0.8)) is None
    assert size_reaching(0.9, (4, 16, 64), (0.1, 0.5, 0.9)) == pytest.approx(64)


def test_defects_on_images_that_are_flagged_anyway_do_not_count() -> None:
    renderings = make_renderings([rendering(0.7), rendering(0.4), rendering(0.9, host=1), rendering(None)])
    assert judge_visibility(renderings, 0.5).counted == (1, 2)
    assert judge_visibility(renderings, 0.65).counted == (2, 3)


def test_kinds_and_contrasts_are_told_apart() -> None:
    rows = [rendering(0.9), rendering(0.1, kind="stain"), rendering(0.9, contrast=60)]
    renderings = make_renderings(rows)
    assert judge_visibility(renderings, 0.5, "scratch").counted == (2, 2)
    assert judge_visibility(renderings, 0.5, "stain").counted == (0, 1)
    assert judge_visibility(renderings, 0.5, None, 60).counted == (1, 1)


def spread_out(blind_left: bool, seed: int) -> Renderings:
    """Defects everywhere, of which half are found; on the left edge none, if it is blind."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(300):
        x, y = int(random.integers(200)), int(random.integers(100))
        seen = random.random() < 0.5 and not (blind_left and x < 200 / 3 and 100 / 3 <= y < 200 / 3)
        rows.append(rendering(0.9 if seen else 0.1, center=(x, y)))
    return make_renderings(rows)


def test_a_blind_place_is_named_and_chance_is_not() -> None:
    for seed in range(20):
        renderings = spread_out(True, seed)
        assert find_blind_zones(renderings, list(renderings.judged(0.5)), "scratch") == ["left edge"]
        renderings = spread_out(False, seed)
        assert find_blind_zones(renderings, list(renderings.judged(0.5))) == []


def test_small_defects_in_a_place_do_not_make_it_blind() -> None:
    """Where only small defects lie, few are found, and that is expected."""
    rows = [rendering(0.1, 3, center=(5, 50)) for _ in range(20)] + [
        rendering(0.9, 30, center=(x, y)) for x in range(10, 190, 20) for y in range(5, 100, 20)
    ]
    assert find_blind_zones(make_renderings(rows), list(make_renderings(rows).judged(0.5))) == []


def test_a_place_with_few_defects_is_not_called_blind() -> None:
    assert not is_blind([False] * 7, [0.9] * 7)
    assert is_blind([False] * 8, [0.9] * 8)
    assert not is_blind([True] * 8, [0.9] * 8)
    assert not is_blind([False] * 8, [0.0] * 8)


def test_the_map_is_dark_where_nothing_lies_and_low_where_nothing_is_found() -> None:
    renderings = spread_out(True, 3)
    ratio = map_found(renderings, list(renderings.judged(0.5)))
    assert ratio.shape == (MAP_CELLS, MAP_CELLS)
    assert ratio[MAP_CELLS // 2, 1] < 0.3
    assert ratio[MAP_CELLS // 2, -3] > 0.6
    alone = make_renderings([rendering(0.9, center=(5, 5)) for _ in range(4)])
    ratio = map_found(alone, list(alone.judged(0.5)))
    assert ratio[0, 0] == pytest.approx(1) and np.isnan(ratio[-1, -1])
    assert np.isnan(map_found(alone, [])).all()


def test_renderings_survive_json() -> None:
    import json

    cells = make_renderings([]).plan.cells
    rows = [
        Rendering(*cells[n % len(cells)], n % 2, (n, 2 * n), (1, 2) if n % 3 else None, None if n == 4 else n / 7)
        for n in range(len(cells) + 5)
    ]
    renderings = make_renderings(rows)
    assert Renderings.from_dict(json.loads(json.dumps(renderings.to_dict()))) == renderings


@pytest.mark.parametrize(
    "changes", [{"host": [7]}, {"score": [math.nan]}, {"center": [[1]]}, {"plan": {}}, {"score": [1.0, 2.0]}]
)
def test_damaged_renderings_are_refused(changes: dict[str, object]) -> None:
    stored = make_renderings([rendering(0.5)]).to_dict()
    with pytest.raises((KeyError, TypeError, ValueError)):
        Renderings.from_dict({**stored, **changes})
