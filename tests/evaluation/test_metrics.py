"""Metrics against loops over every threshold, against scikit-learn, and by hand."""

import math
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from procon.evaluation.metrics import IMAGE_KEYS, PIXEL_KEYS, MetricValues, evaluate, trace_curves, trace_image_curves
from procon.evaluation.metrics.counts import VALUE_BYTES, HighestValues
from tests.evaluation import metric_reference as reference

Image = tuple[NDArray[Any], NDArray[np.bool_]]


@st.composite
def labelled_images(draw: st.DrawFn) -> list[Image]:
    """A few small images of different sizes, with values that are full of ties."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    levels = draw(st.sampled_from([1, 2, 6, 1000]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]))
    images = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(random.integers(1, 7, 2))
        mask = random.random(shape) < density
        values = random.integers(0, levels, shape) + mask * draw(st.integers(0, levels))
        images.append(((values * 0.1 - 0.2).astype(dtype), mask))
    return images


def measured(images: list[Image], **settings: Any) -> MetricValues:
    """``evaluate`` with the largest value of a map as the score of its image."""
    scores = [values.max() for values, _ in images]
    labels = [mask.any() for _, mask in images]
    return evaluate(scores, labels, [values for values, _ in images], [mask for _, mask in images], **settings)


def random_images(count: int, side: int, decimals: int = 1, dtype: Any = np.float32, seed: int = 0) -> list[Image]:
    random = np.random.default_rng(seed)
    images = []
    for index in range(count):
        mask = np.zeros((side, side), bool)
        if index % 2:
            row, column = random.integers(0, side // 2, 2)
            mask[row : row + side // 4, column : column + side // 3] = True
            mask[-1, random.integers(0, side)] = True
        values = random.normal(size=(side, side)) + mask
        images.append((values.round(decimals).astype(dtype), mask))
    return images


# ---------------------------------------------------------------------------------------------- against the references


@settings(deadline=None, max_examples=150)
@given(labelled_images())
def test_pixel_metrics_equal_the_loops_over_every_threshold(images: list[Image]) -> None:
    maps, masks = [values for values, _ in images], [mask for _, mask in images]
    marked = np.concatenate([mask.ravel() for mask in masks])
    found = measured(images)
    assert set(found) == {*IMAGE_KEYS, *PIXEL_KEYS}
    if marked.any() and not marked.all():
        expected = reference.pixel_metrics(maps, masks)
        for key in PIXEL_KEYS:
            assert found[key] == pytest.approx(expected[key], abs=1e-12, nan_ok=True), key
    for key, value in found.items():
        assert math.isnan(value) == (key in found.reasons)
        assert math.isnan(value) or 0 <= value <= 1


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_image_metrics_equal_the_loops_over_every_threshold(rows: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([score for score, _ in rows]), np.array([label for _, label in rows])
    found = evaluate(scores, labels)
    if labels.any():
        assert found["i_ap"] == pytest.approx(reference.average_precision(scores, labels), abs=1e-12)
        assert found["i_f1"] == pytest.approx(reference.best_f1(scores, labels), abs=1e-12)
    if labels.any() and not labels.all():
        assert found["i_auroc"] == pytest.approx(reference.auroc(scores, labels), abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scikit_learn_gives_the_same(decimals: int, dtype: Any) -> None:
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

    images = random_images(12, 96, decimals, dtype)
    values = np.concatenate([values.ravel() for values, _ in images])
    truth = np.concatenate([mask.ravel() for _, mask in images])
    found = measured(images)
    assert found["p_auroc"] == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
    assert found["p_ap"] == pytest.approx(average_precision_score(truth, values), abs=1e-12)
    precision, recall, _ = precision_recall_curve(truth, values)
    with np.errstate(invalid="ignore"):
        assert found["p_f1"] == pytest.approx(np.nanmax(2 * precision * recall / (precision + recall)), abs=1e-12)
    rate, recall, _ = roc_curve(truth, values, drop_intermediate=False)
    inside = rate <= 0.3
    x, y = np.append(rate[inside], 0.3), np.append(recall[inside], np.interp(0.3, rate, recall))
    assert found["pauroc30"] == pytest.approx(auc(x, y) / 0.3, abs=1e-12)


# ---------------------------------------------------------------------------------------------- by hand

MASK = np.array([[1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]])  # regions of one and of two pixels, ten negatives


@pytest.mark.parametrize(
    ("second", "negatives", "area"),
    [
        # The first region is found at once. Half of the second one comes after one negative of ten.
        ([7.5, -1], [8, 7, 6, 5, 4, 3, 2, 1, 0, 0], 0.1 * 0.5 + 0.2 * 0.75),
        # It comes together with the second negative: a diagonal from 0.1 to 0.2.
        ([7, -1], [8, 7, 6, 5, 4, 3, 2, 1, 0, 0], 0.1 * 0.5 + 0.1 * 0.625 + 0.1 * 0.75),
        # It comes together with four negatives: a diagonal from 0.1 to 0.5, half way up at 0.3.
        ([7, -1], [8, 7, 7, 7, 7, 3, 2, 1, 0, 0], 0.1 * 0.5 + 0.2 * (0.5 + 0.625) / 2),
        # It comes after the limit.
        ([5, -1], [8, 7, 6, 5.5, 4, 3, 2, 1, 0, 0], 0.3 * 0.5),
    ],
)
def test_aupro_by_hand(second: list[float], negatives: list[float], area: float) -> None:
    values = np.array([[10, negatives[0], *second, *negatives[1:]]])
    assert evaluate([1], [1], [values], [MASK])["aupro"] == pytest.approx(area / 0.3, abs=1e-15)


def test_pro200_by_hand() -> None:
    """Thresholds 0, 1, ..., 199. Rates below 0.3 are 0 (covered 0.5), 0.1 (0.5, then 0.75) and 0.2 (0.75)."""
    values = np.array([[200, 150, 120, 0, 100, 50, 0, 0, 0, 0, 0, 0, 0]])
    found = evaluate([1], [1], [values], [MASK])
    assert found["pro200"] == pytest.approx(0.5 * 0.5 + 0.5 * 0.75, abs=1e-15)
    assert found["aupro"] == pytest.approx((0.1 * 0.5 + 0.2 * 0.75) / 0.3, abs=1e-15)


def test_pro200_compares_float32_values_with_float64_thresholds() -> None:
    """Thresholds are i / 200; float32 of that lies above some of them, as 0.1 does, and below others."""
    random = np.random.default_rng(0)
    values = np.concatenate([[0, 200], random.integers(0, 200, 500)]).reshape(1, -1) / 200
    mask = random.random(values.shape) < 0.5
    for dtype in (np.float32, np.float64):
        expected = reference.pro200([values.astype(dtype)], [mask])
        found = evaluate([1], [1], [values.astype(dtype)], [mask])["pro200"]
        assert found == pytest.approx(expected, abs=1e-12)


def test_regions_weigh_the_same_whatever_their_size_and_touch_at_corners() -> None:
    mask = np.zeros((6, 20), bool)
    mask[0, 0] = mask[1, 1] = True  # one region: they touch at a corner
    mask[:, 5:15] = True
    found = evaluate([1], [1], [np.where(mask & (np.arange(20) < 5), 1.0, 0.0)], [mask])
    # One region of two is found before any negative, the other one together with all of them.
    at_limit = 0.5 + 0.3 * 0.5
    assert found["aupro"] == pytest.approx((0.5 + at_limit) / 2, abs=1e-15)
    assert found["pauroc30"] == pytest.approx((2 / 62 + 2 / 62 + 0.3 * 60 / 62) / 2, abs=1e-15)


def test_a_perfect_and_a_blind_map() -> None:
    images = random_images(6, 30)
    perfect = measured([(mask.astype(np.float32), mask) for _, mask in images])
    # The few thresholds of pro200 all lie above every negative, so it has nothing to go by.
    assert perfect == {key: 1.0 for key in perfect if key != "pro200"} | {
        "pro200": pytest.approx(math.nan, nan_ok=True)
    }
    assert perfect.reasons == {"pro200": "no threshold has a false positive rate between 0 and 0.3"}
    blind = measured([(np.full_like(values, 7), mask) for values, mask in images])
    share = np.mean([mask for _, mask in images])
    assert blind["p_auroc"] == blind["i_auroc"] == 0.5
    assert blind["aupro"] == pytest.approx(0.15) == blind["pauroc30"]
    assert blind["p_ap"] == pytest.approx(share)
    assert blind["p_f1"] == pytest.approx(2 * share / (1 + share))


def test_one_positive_pixel() -> None:
    values = np.arange(100.0).reshape(10, 10)
    mask = values == 89
    found = evaluate([1], [1], [values], [mask])
    assert found["p_auroc"] == pytest.approx(89 / 99)
    assert found["p_ap"] == pytest.approx(1 / 11)
    assert found["aupro"] == found["pauroc30"] == pytest.approx((0.3 - 10 / 99) / 0.3)


# ---------------------------------------------------------------------------------------------- how the work is cut


@settings(deadline=None, max_examples=60)
@given(labelled_images(), st.integers(1, VALUE_BYTES * 30), st.randoms())
def test_neither_memory_nor_order_changes_a_bit(images: list[Image], memory: int, random: Any) -> None:
    shuffled = random.sample(images, len(images))
    assert str(measured(shuffled, memory=memory)) == str(measured(images))


def test_many_slices_and_chunks_of_distinct_values_change_no_bit() -> None:
    images = random_images(6, 40, decimals=9, dtype=np.float64)
    whole = measured(images)
    for memory in (VALUE_BYTES * 10, VALUE_BYTES * 100, VALUE_BYTES * 5000):
        assert measured(images, memory=memory) == whole


class Lazy:
    """Maps (part 0) or masks (part 1) of 256 x 256 pixels, made when they are asked for; counts how often that is."""

    def __init__(self, part: int, count: int) -> None:
        self.part, self.count, self.asked = part, count, 0

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.count):
            self.asked += 1
            yield random_images(2, 256, decimals=3, seed=index)[1][self.part]


def test_memory_stays_bounded() -> None:
    """Twenty megabytes of maps, of which 1.8 are of positive pixels with thousands of values."""
    tracemalloc.start()
    found = evaluate(np.zeros(80), np.ones(80), Lazy(0, 80), Lazy(1, 80), memory=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["aupro"] > 0.2
    assert peak < 5 << 20


def test_maps_are_read_twice_and_masks_once() -> None:
    maps, masks = Lazy(0, 3), Lazy(1, 3)
    evaluate(np.zeros(3), np.ones(3), maps, masks)
    assert (maps.asked, masks.asked) == (6, 3)


def test_maps_are_read_twice_for_each_slice() -> None:
    maps, masks = Lazy(0, 3), Lazy(1, 3)
    evaluate(np.zeros(3), np.ones(3), maps, masks, memory=VALUE_BYTES * 1000)
    distinct = len(
        np.unique(np.concatenate([values[mask] for values, mask in zip(Lazy(0, 3), Lazy(1, 3), strict=True)]))
    )
    assert distinct > 3000
    assert (maps.asked, masks.asked) == (2 * 3 * math.ceil(distinct / 1000), 3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=20), max_size=6), st.integers(1, 10), st.integers(0, 10))
def test_the_highest_distinct_values_are_found_in_one_pass(batches: list[list[int]], budget: int, high: int) -> None:
    found = HighestValues(budget, high)
    for batch in batches:
        found.add(np.array(batch, np.float32), np.array([value + 1 for value in batch], np.int64))
    counted = Counter(value for batch in batches for value in batch if value < high)
    expected = sorted(counted)[-budget:]
    values, at, share = found.result()
    assert values.tolist() == expected
    assert at.tolist() == [counted[value] for value in expected]
    assert share.tolist() == [counted[value] * (value + 1) for value in expected]
    assert found.low == (expected[0] if len(expected) < len(counted) else -math.inf)


# ---------------------------------------------------------------------------------------------- what may be given


def test_one_shot_iterators_give_the_same() -> None:
    images = random_images(5, 20)
    scores, labels = [0, 3, 1, 2, 1], [0, 1, 0, 1, 0]
    maps, masks = [values for values, _ in images], [mask if mask.any() else None for _, mask in images]
    assert evaluate(scores, labels, iter(maps), iter(masks)) == evaluate(scores, labels, maps, masks)
    drawn = trace_curves((values for values in maps), (mask for mask in masks))
    np.testing.assert_array_equal(drawn["pro"], trace_curves(maps, masks)["pro"])


@pytest.mark.parametrize("kind", ["bool", "ones", "uint8", "float", "none", "tensor", "stacked"])
def test_masks_and_maps_of_any_kind_give_the_same(kind: str) -> None:
    import torch

    images = random_images(4, 16)
    maps: Any = [values for values, _ in images]
    forms: dict[str, Any] = {
        "bool": lambda mask: mask,
        "ones": lambda mask: mask.astype(int),
        "uint8": lambda mask: mask.astype(np.uint8) * 255,
        "float": lambda mask: mask.astype(np.float32),
        "none": lambda mask: mask if mask.any() else None,
        "tensor": torch.from_numpy,
        "stacked": lambda mask: mask,
    }
    masks: Any = [forms[kind](mask) for _, mask in images]
    if kind == "tensor":
        maps = torch.from_numpy(np.stack(maps))
    if kind == "stacked":
        maps, masks = np.stack(maps), np.stack(masks)
    scores, labels = np.arange(4), np.array([0, 1, 0, 1])
    found, expected = evaluate(scores, labels, maps, masks), measured(images)
    assert {key: found[key] for key in PIXEL_KEYS} == {key: expected[key] for key in PIXEL_KEYS}


def test_float64_maps_are_not_rounded_to_float32() -> None:
    mask = np.array([[True, False]])
    values = np.array([[1 + 1e-12, 1.0]])
    assert evaluate([1], [1], [values], [mask])["p_auroc"] == 1.0
    assert evaluate([1], [1], [values.astype(np.float32)], [mask])["p_auroc"] == 0.5


def test_maps_of_different_precision_are_compared_exactly() -> None:
    single, double = np.array([[0.1]], np.float32), np.array([[0.1]])  # the single one is a little larger
    for maps, expected in (([single, double], 1.0), ([double, single], 0.0)):
        assert evaluate([0, 0], [0, 1], maps, [[[1]], [[0]]])["p_auroc"] == expected


def test_labels_and_masks_are_independent() -> None:
    images = random_images(4, 16)
    maps, masks = zip(*images, strict=True)
    flipped = evaluate([0, 1, 2, 3], [1, 0, 1, 0], maps, masks)
    assert {key: flipped[key] for key in PIXEL_KEYS} == {key: measured(images)[key] for key in PIXEL_KEYS}


# ---------------------------------------------------------------------------------------------- undefined and refused


def test_undefined_metrics_are_nan_and_say_why() -> None:
    good = evaluate([1.0, 2.0], [0, 0])
    assert all(math.isnan(value) for value in good.values())
    assert good.reasons == dict.fromkeys(IMAGE_KEYS, "every image is labelled 0") | dict.fromkeys(
        PIXEL_KEYS, "no maps were given"
    )
    bad = evaluate([1.0, 2.0], [1, 1], np.zeros((2, 3, 3)))
    assert (bad["i_ap"], bad["i_f1"]) == (1.0, 1.0)
    assert bad.reasons == {"i_auroc": "every image is labelled 1"} | dict.fromkeys(PIXEL_KEYS, "no masks were given")


def test_undefined_pixel_metrics_are_nan_and_say_why() -> None:
    maps = np.arange(8.0).reshape(2, 2, 2)
    nothing = evaluate([1, 2], [0, 1], maps, [None, np.zeros((2, 2))])
    assert nothing.reasons == dict.fromkeys(PIXEL_KEYS, "no mask marks a pixel")
    everything = evaluate([1, 2], [0, 1], maps, np.ones((2, 2, 2)))
    assert (everything["p_ap"], everything["p_f1"]) == (1.0, 1.0)
    assert everything.reasons == dict.fromkeys(["p_auroc", "aupro", "pauroc30", "pro200"], "the masks mark every pixel")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[5.0, 5.0, 5.0]], "no threshold has a false positive rate between 0 and 0.3"),
        ([[200.0, 0.0, 100.0]], "no threshold has a false positive rate between 0 and 0.3"),
        ([[0.0, 1.0, 1.0]], "fewer than two of 200 thresholds have a false positive rate below 0.3"),
        ([[1e308, -1e308, 0.0]], "the map values span too wide a range for evenly spaced thresholds"),
    ],
)
def test_pro200_says_why_it_is_undefined(values: Any, reason: str) -> None:
    found = evaluate([1], [1], [np.array(values)], [np.array([[1, 0, 0]])])
    assert math.isnan(found["pro200"])
    assert found.reasons["pro200"] == reason
    assert found["aupro"] >= 0


MAP, NO_MASK = np.zeros((2, 3), np.float32), np.zeros((2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1]), "scores and labels must be [N] with N at least 1, got (2,) and (1,)"),
        (([], []), "scores and labels must be [N] with N at least 1, got (0,) and (0,)"),
        (([1, math.nan], [0, 1]), "scores must be finite, got nan for image 1"),
        ((["a"], [1]), "scores must be real numbers, got <U1"),
        (([1, 2], [0, 2]), "labels must be 0 (good) or 1 (defective), got 2 for image 1"),
        (([1], [1], [MAP], []), "scores and masks must be of one length, got 1 and 0"),
        (([1], [1], [], [None]), "maps and masks must be of one length, got 0 maps and 1 masks"),
        (([1], [1], [MAP] * 3, [None]), "maps and masks must be of one length, got at least 2 maps and 1 masks"),
        (([1], [1], [MAP[None]], [None]), "map 0 must be [H, W] with at least one pixel, got shape (1, 2, 3)"),
        (([1], [1], [MAP[:0]], [None]), "map 0 must be [H, W] with at least one pixel, got shape (0, 3)"),
        (([1], [1], [MAP + 1j], [None]), "map 0 must hold real numbers, got complex64"),
        (([1], [1], [MAP + np.inf], [None]), "map 0 must be finite, got inf in row 0, column 0"),
        (([1], [1], [[[0, math.nan]]], [None]), "map 0 must be finite, got nan in row 0, column 1"),
        (([1], [1], [MAP], [[1]]), "mask 0 must be [H, W], got shape (1,)"),
        (
            ([1], [1], [MAP], [NO_MASK.T]),
            "mask 0 must have the size of its map, got (3, 2) for a map of (2, 3): resize the mask with nearest "
            "neighbour, or the map to the size of the mask",
        ),
        (
            ([1], [1], [MAP], [[[0, 128, 255], [0, 0, 0]]]),
            "mask 0 must hold 0 and one other value (True, 1 or 255), got 0, 128, 255: resize masks with nearest "
            "neighbour, or say which values are defects with a comparison such as mask > 127",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        evaluate(*arguments)


# ---------------------------------------------------------------------------------------------- curves


@settings(deadline=None, max_examples=60)
@given(labelled_images())
def test_curves_of_a_few_values_are_the_whole_curves(images: list[Image]) -> None:
    maps, masks = [values for values, _ in images], [mask for _, mask in images]
    marked = np.concatenate([mask.ravel() for mask in masks])
    drawn = trace_curves(maps, masks)
    if not marked.any() or marked.all():
        assert len(drawn["roc"][0]) == len(drawn["pro"][0]) == 0
        assert (len(drawn["pr"][0]) == 0) != marked.any()
        return
    values = np.concatenate([array.ravel() for array in maps])
    for name, whole in (("roc", reference.roc_curve(values, marked)), ("pro", reference.pro_curve(maps, masks))):
        points = list(zip(*drawn[name], strict=True))
        assert points[0] == (0, 0)
        assert points[-1] == (1, 1)
        for limit in (0.05, 0.3, 1.0):
            assert reference.area_to(limit, points) == pytest.approx(reference.area_to(limit, whole), abs=1e-12)
    recall, precision = drawn["pr"]
    area = float((np.diff(recall) * precision[1:]).sum())
    assert area == pytest.approx(reference.average_precision(values, marked), abs=1e-12)


def test_thinned_curves_keep_exact_points_and_the_shape() -> None:
    images = random_images(6, 200, decimals=9, dtype=np.float64)
    maps, masks = zip(*images, strict=True)
    found, drawn = measured(images), trace_curves(maps, masks)
    assert all(100 < len(x) <= 512 and (np.diff(x) >= 0).all() for x, _ in drawn.values())
    for key, name, limit in (("p_auroc", "roc", 1.0), ("pauroc30", "roc", 0.3), ("aupro", "pro", 0.3)):
        points = list(zip(*drawn[name], strict=True))
        assert reference.area_to(limit, points) == pytest.approx(found[key], abs=2e-3)
    recall, precision = drawn["pr"]
    assert (np.diff(recall) * precision[1:]).sum() == pytest.approx(found["p_ap"], abs=1e-2)
    assert (2 * recall * precision / (recall + precision)).max() == pytest.approx(found["p_f1"], abs=1e-3)
    values, truth = np.concatenate([v.ravel() for v in maps]), np.concatenate([m.ravel() for m in masks])
    order = np.argsort(-values)
    true, false = truth[order].cumsum() / truth.sum(), (~truth[order]).cumsum() / (~truth).sum()
    whole = {(0.0, 0.0), *zip(false.tolist(), true.tolist(), strict=True)}
    assert set(zip(*(axis.tolist() for axis in drawn["roc"]), strict=True)) <= whole
    again = trace_curves(maps, masks, memory=VALUE_BYTES * 900)
    assert all(np.array_equal(again[name], drawn[name]) for name in drawn)


def test_a_thinned_precision_recall_curve_reaches_full_recall() -> None:
    """The last of 1,000 positives is neither the lowest nor the highest point of its cell."""
    scores = np.concatenate([np.linspace(3, 2, 997), np.full(100, 1.5), [1.2, 1.1, 1.0]])
    recall, precision = trace_image_curves(scores, scores != 1.5)["pr"]
    assert (recall[-1], precision[-1]) == (1, 1000 / 1100)
    assert precision.min() == 998 / 1098


def test_image_curves() -> None:
    drawn = trace_image_curves([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    np.testing.assert_array_equal(drawn["roc"], [[0, 0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1, 1]])
    np.testing.assert_allclose(drawn["pr"], [[0, 0.5, 1], [1, 1, 2 / 3]])
    assert [len(x) for x, _ in trace_image_curves([1, 2], [0, 0]).values()] == [0, 0]
