"""The whole method on a tiny backbone: right, repeatable to the bit, and honest when something is wrong."""

import shutil
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from procon import (
    BatchError,
    Config,
    ConfigError,
    Detector,
    ImageError,
    ModelFileError,
    NotFittedError,
    WeightsError,
)
from procon.method.score import fuse, read_layers
from procon.model import storage
from procon.model.selection import FeatureStore
from procon.prediction import Prediction
from procon.vision.framing import to_input
from procon.vision.images import open_image
from tests import reference
from tests.conftest import part_pixels, tiny_config, with_model, write_tiny_backbone

RTOL = 1e-5
STAGES = ("reading images", "selecting anchors", "measuring good images", "calibrating")


def fit(weights: Path, images: object, **settings: object) -> Detector:
    return Detector(tiny_config(weights, **settings), device="cpu").fit(images)


def good_parts(count: int) -> list[NDArray[np.uint8]]:
    return [part_pixels(seed) for seed in range(count)]


def assert_same(one: Prediction, other: Prediction) -> None:
    """Equal to the last bit, whatever the image was called."""
    assert one.score == other.score
    assert one.heatmap.dtype == other.heatmap.dtype == np.float32
    assert np.array_equal(one.heatmap, other.heatmap)
    assert (one.is_anomalous, one.threshold, one.p_value) == (other.is_anomalous, other.threshold, other.p_value)
    assert one.regions == other.regions


def tokens_of(detector: Detector, image: object) -> list[reference.Floats]:
    config = detector.config
    pixels = torch.from_numpy(to_input(open_image(image), config))
    return [layer[0].numpy() for layer in detector.reader.extractor.backbone.tokens(pixels.unsqueeze(0))]


def by_hand(
    detector: Detector, image: object, without: int | None = None, others: Sequence[object] = ()
) -> tuple[float, reference.Floats, reference.Floats]:
    """The slow reference on the tokens of ``image``; of training image ``without``, with stand-ins for its anchors."""
    memory, config = detector.memory, detector.config
    assert memory is not None
    matrices = [None if matrix is None else matrix.numpy() for matrix in detector.reader.extractor.projections]
    banks = []
    for index, layer in enumerate(memory.layers):
        vectors: list[reference.Floats | None] = list(layer.anchors.numpy())
        origin = layer.origin.tolist()
        if without is not None:
            good = [reference.project(tokens_of(detector, one)[index], matrices[index]) for one in others]
            spare = reference.stand_ins(
                np.stack(good), layer.anchors.numpy(), origin, layer.banks.tolist(), config.num_neighbors
            )
            vectors = [
                spare[row] if origin[row] // memory.patches == without else vectors[row] for row in range(len(vectors))
            ]
        kept = [[v for row in bank.tolist() if (v := vectors[row]) is not None] for bank in layer.banks]
        banks.append([np.stack(bank) for bank in kept])
    return reference.procon_scores(
        tokens_of(detector, image),
        banks,
        matrices,
        k=config.num_neighbors,
        top_ratio=config.top_ratio,
        grid=config.grid,
        input_size=config.input_size,
        sigma=config.blur_sigma,
        image_size=open_image(image).size,
    )


# ------------------------------------------------------------------------------------------------- the right answer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"projection_dim": 16, "selection_dim": 8, "top_ratio": 0.15, "banks": 3},
        {"image_size": (56, 84), "layers": (-2,), "banks": 4, "blur_sigma": 2.5, "num_neighbors": 5},
    ],
)
def test_the_pipeline_equals_the_reference(settings: dict[str, object], tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone, good_parts(4), **settings)
    for image in (part_pixels(50), part_pixels(51, defect=True)):
        score, _, heatmap = by_hand(detector, image)
        found = detector.predict(image)
        assert found.score == pytest.approx(score, rel=RTOL)
        np.testing.assert_allclose(found.heatmap, heatmap, rtol=RTOL)


def test_calibration_scores_each_image_without_its_own_anchors(tiny_backbone: Path) -> None:
    images = good_parts(5)
    detector = fit(tiny_backbone, images, projection_dim=16)
    known = detector.calibration
    assert known is not None
    left_out = [by_hand(detector, image, without=index, others=images) for index, image in enumerate(images)]
    assert known.scores == pytest.approx([score for score, _, _ in left_out], rel=RTOL)
    assert known.peaks == pytest.approx([float(pixels.max()) for _, pixels, _ in left_out], rel=RTOL)
    # Its own anchors explain an image too well: with them the threshold would be far too low.
    assert max(detector.predict(image).score for image in images) < min(known.scores)


def test_the_hard_baseline_equals_the_reference(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone, good_parts(4), readout="hard", layers=(-1,), banks=1)
    assert detector.memory is not None
    image = part_pixels(60)
    patches = reference.project(tokens_of(detector, image)[0], None)
    distances = reference.hard_residual(patches, detector.memory.layers[0].bank(0).numpy())
    assert detector.predict(image).score == pytest.approx(reference.top_mean(distances, 0.005), rel=RTOL)


def test_every_baseline_runs_and_says_something_else(tiny_backbone: Path) -> None:
    layers = (-1, -2, -3)  # three, as the median of two layers is their mean
    variants: dict[str, dict[str, object]] = {
        "procon": {},
        "one bank": {"banks": 1},
        "four banks": {"banks": 4},
        "hard": {"readout": "hard"},
        "one layer": {"layers": (-2,)},
        "concat": {"layer_fusion": "concat"},
        "median": {"layer_fusion": "median"},
        "max": {"layer_fusion": "max"},
        "robust": {"normalization": "robust"},
        "subsampled temperature": {"tau_patches": 7},
        "other seed": {"seed": 43, "projection_dim": 16},
        "projected": {"projection_dim": 16},
        "two neighbours": {"num_neighbors": 2},
        "smaller coreset": {"coreset_ratio": 0.1},
        "capped coreset": {"max_anchors": 9},
        "other banks": {"bank_seed": 7, "banks": 1},
        "random coreset": {"coreset": "random"},
        "dense coreset": {"coreset": "dense"},
        "uniform weights": {"readout": "uniform"},
        "fixed temperature": {"tau": 0.01},
        "normal statistics": {"normalization": "train"},
    }
    images, new = good_parts(3), part_pixels(70)
    maps = {}
    for name, settings in variants.items():
        maps[name] = fit(tiny_backbone, images, **{"layers": layers, **settings}).predict(new).heatmap
        assert np.isfinite(maps[name]).all(), name
    assert len({heatmap.tobytes() for heatmap in maps.values()}) == len(variants)
    assert (maps["max"] > maps["procon"]).all()  # the largest layer is above the mean of all
    assert maps["robust"].min() < 0  # half the patches are below their own median


def test_statistics_of_good_images_put_layers_on_one_scale(tiny_backbone: Path, tmp_path: Path) -> None:
    images = good_parts(4)
    detector = fit(tiny_backbone, images, normalization="train")
    assert detector.memory is not None
    pixels = torch.cat([pixels for _, pixels in detector.reader.extractor.batches(images)])
    features = detector.reader.extractor.features(pixels)
    readings = []
    for i in range(len(images)):
        own, image = detector.memory.own([i]), [layer[i : i + 1] for layer in features]
        layers = read_layers(image, detector.memory, detector.config, hidden=own)
        readings.append(fuse(layers, detector.memory, detector.config).maps)
    maps = torch.cat(readings).double().numpy()
    for index, layer in enumerate(detector.memory.layers):
        assert layer.scale == pytest.approx((maps[:, index].mean(), maps[:, index].std()), rel=1e-9)
    new = part_pixels(70)
    loaded = Detector.load(detector.save(tmp_path / "part.procon", embed_backbone=True))
    assert loaded.predict(new).score == detector.predict(new).score


def test_statistics_of_good_images_need_several_of_them(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="normalization='train' needs more training images"):
        fit(tiny_backbone, good_parts(1), normalization="train")


def test_a_defect_scores_higher_where_it_is(detector: Detector) -> None:
    good, bad = detector.predict([part_pixels(80), part_pixels(80, defect=True)])
    assert bad.score > good.score
    assert bad.is_anomalous
    row, column = np.unravel_index(np.argmax(bad.heatmap - good.heatmap), bad.heatmap.shape)
    assert 30 <= row < 70  # the square, widened by half a patch and the blur
    assert 20 <= column < 60
    assert bad.regions
    assert bad.regions[0].peak == bad.heatmap.max()


def test_a_prediction_agrees_with_itself(detector: Detector, good_folder: Path) -> None:
    known = detector.calibration
    assert known is not None
    for prediction in detector.predict([*sorted(good_folder.iterdir())[:2], part_pixels(81, defect=True)]):
        assert prediction.threshold == known.threshold
        assert prediction.p_value == known.p_value(prediction.score)
        assert prediction.is_anomalous == (prediction.score > known.threshold)
        boxes = reference.regions(prediction.heatmap, known.pixel_threshold)
        assert [region.box for region in prediction.regions] == [box for box, _, _, _ in boxes]


def test_the_false_alarm_rate_moves_the_threshold(tiny_backbone: Path) -> None:
    settings: dict[str, object] = {"threshold_rule": "guarantee"}
    parts = good_parts(5)
    strict, loose = (fit(tiny_backbone, parts, false_alarm_rate=r, **settings).calibration for r in (0.01, 0.5))
    assert strict is not None
    assert loose is not None
    assert strict.scores == loose.scores
    assert strict.threshold == max(strict.scores)  # five images promise one in six at best
    assert loose.threshold == reference.conformal_quantile(loose.scores, Fraction(1, 2)) < strict.threshold


# --------------------------------------------------------------------------------------------------- heat map geometry


@pytest.mark.parametrize("shape", [(70, 70), (96, 80), (33, 141), (300, 64)])
def test_the_heat_map_has_the_size_of_the_image(shape: tuple[int, int], detector: Detector) -> None:
    image = np.full((*shape, 3), 90, np.uint8)
    assert detector.predict(image).heatmap.shape == shape


def test_a_crop_leaves_zero_outside_and_the_map_where_the_crop_was(tiny_backbone: Path) -> None:
    parts = [part[6:90, :].repeat(2, axis=1)[:, :84] for part in good_parts(4)]  # 84 x 84: no resampling blurs the edge
    cropped = fit(tiny_backbone, parts[:3], resize=84).predict(parts[3])
    inside = fit(tiny_backbone, [part[7:77, 7:77] for part in parts[:3]]).predict(parts[3][7:77, 7:77])
    expected = np.zeros((84, 84), np.float32)
    expected[7:77, 7:77] = inside.heatmap
    assert np.array_equal(cropped.heatmap, expected)
    assert cropped.score == inside.score


def test_a_crop_of_a_larger_image_is_zero_at_its_border(tiny_backbone: Path) -> None:
    heatmap = fit(tiny_backbone, good_parts(2), resize=140).predict(np.full((280, 420, 3), 90, np.uint8)).heatmap
    assert heatmap.shape == (280, 420)
    assert (heatmap[72:208, 108:312] > 0).all()
    outside = heatmap.copy()
    outside[68:212, 102:318] = 0  # a crop of 140 x 210 pixels, and what interpolation touches around it
    assert not outside.any()


# --------------------------------------------------------------------------------------------------- the same bits


@pytest.fixture(scope="module")
def queries() -> list[NDArray[np.uint8]]:
    return [part_pixels(90), part_pixels(91, defect=True), part_pixels(92)[:70, :70], part_pixels(93)[5:60]]


@pytest.fixture(scope="module")
def alone(detector: Detector, queries: list[NDArray[np.uint8]]) -> list[Prediction]:
    return [detector.predict(query) for query in queries]


def test_batch_order_and_history_do_not_matter(
    detector: Detector, queries: list[NDArray[np.uint8]], alone: list[Prediction]
) -> None:
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 2], [1]):
        for index, prediction in zip(order, detector.predict([queries[index] for index in order]), strict=True):
            assert_same(prediction, alone[index])
    torch.manual_seed(5)
    for streamed, expected in zip(detector.predict_each(iter(queries)), alone, strict=True):
        assert isinstance(streamed, Prediction)
        assert_same(streamed, expected)


def test_a_subsampled_temperature_does_not_depend_on_history(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone, good_parts(3), tau_patches=7)
    first = detector.predict(part_pixels(94))
    detector.predict(part_pixels(95))
    assert_same(detector.predict(part_pixels(94)), first)


def test_threads_do_not_matter(tiny_backbone: Path, queries: list[NDArray[np.uint8]]) -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(fit(tiny_backbone, good_parts(3)).predict(queries))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("embed", [False, True])
def test_a_saved_model_gives_the_same_bits(
    embed: bool, detector: Detector, queries: list[NDArray[np.uint8]], alone: list[Prediction], tmp_path: Path
) -> None:
    again = Detector.load(detector.save(tmp_path / "part.procon", embed_backbone=embed), device="cpu")
    assert again.config == detector.config
    assert again.calibration == detector.calibration
    for prediction, expected in zip(again.predict(queries), alone, strict=True):
        assert_same(prediction, expected)
    assert (
        again.save(tmp_path / "copy.procon", embed_backbone=embed).read_bytes()
        == (tmp_path / "part.procon").read_bytes()
    )


def test_fits_are_repeatable_to_the_byte(
    tiny_backbone: Path, good_folder: Path, detector: Detector, tmp_path: Path
) -> None:
    once = detector.save(tmp_path / "once.procon").read_bytes()
    again = Detector(detector.config, device="cpu").fit(good_parts(2))
    twice = again.fit(good_folder).save(tmp_path / "twice.procon").read_bytes()
    np.random.seed(1)  # noqa: NPY002  the legacy global state must not matter
    torch.manual_seed(1)
    other = fit(tiny_backbone, good_folder).save(tmp_path / "other.procon").read_bytes()
    assert once == twice == other


def test_features_on_disk_change_anchors_by_half_precision_only(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = fit(tiny_backbone, good_parts(3)).predict(part_pixels(96))
    monkeypatch.setattr("procon.model.reader.FeatureStore", partial(FeatureStore, limit=0))
    on_disk = fit(tiny_backbone, good_parts(3)).predict(part_pixels(96))
    assert on_disk.score == pytest.approx(in_memory.score, rel=0.05)  # a pick may fall on another patch
    assert on_disk.score != in_memory.score


# -------------------------------------------------------------------------------------------- kinds of training images


def as_tensor(pixels: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


def test_fit_takes_folders_paths_pictures_arrays_and_tensors(tiny_backbone: Path, tmp_path: Path) -> None:
    parts = good_parts(2)
    paths = [tmp_path / f"{index}.png" for index in range(2)]
    for part, path in zip(parts, paths, strict=True):
        Image.fromarray(part).save(path)
    kinds: dict[str, object] = {
        "folder": tmp_path,
        "folder as text": str(tmp_path),
        "texts": [str(path) for path in paths],
        "iterator": iter(paths),
        "PIL": [Image.open(path) for path in paths],
        "tensors": [as_tensor(part) for part in parts],
    }
    arrays = fit(tiny_backbone, parts)
    assert arrays.memory is not None
    expected = arrays.predict(part_pixels(97))
    for name, images in kinds.items():
        fitted = fit(tiny_backbone, images)
        assert fitted.memory is not None
        for one, other in zip(fitted.memory.layers, arrays.memory.layers, strict=True):
            assert torch.equal(one.anchors, other.anchors), name
            assert torch.equal(one.banks, other.banks), name
        assert_same(fitted.predict(as_tensor(part_pixels(97))), expected)


def test_training_images_are_remembered_by_name(detector: Detector, good_folder: Path, tiny_backbone: Path) -> None:
    assert detector.memory is not None
    assert detector.memory.names == tuple(str(path) for path in sorted(good_folder.iterdir()))
    unnamed = fit(tiny_backbone, good_parts(2)).memory
    assert unnamed is not None
    assert unnamed.names == ("image 0", "image 1")


def test_one_in_one_out_several_in_a_list_out(detector: Detector, good_folder: Path) -> None:
    first = sorted(good_folder.iterdir())[0]
    single = detector.predict(first)
    assert isinstance(single, Prediction)
    assert single.source == str(first)
    assert [prediction.source for prediction in detector.predict([first])] == [str(first)]
    assert len(detector.predict(good_folder)) == 8
    assert detector.predict([]) == []


def test_one_image_gets_its_threshold_from_its_mirror_image(tiny_backbone: Path, tmp_path: Path) -> None:
    detector = fit(tiny_backbone, part_pixels(0))
    mirrored = detector.predict(np.ascontiguousarray(part_pixels(0)[:, ::-1]))
    known = detector.calibration
    assert known is not None and known.kind == "mirrored"
    assert known.threshold == pytest.approx(1.12 * mirrored.score, rel=1e-6)
    assert known.describe()[-1] == "weak: it rests on 1 image; with 20 or more it is reliable"
    again = Detector.load(detector.save(tmp_path / "one.procon"), device="cpu")
    assert again.calibration == known
    assert detector.predict(part_pixels(0, defect=True)).is_anomalous


def test_a_model_without_a_threshold_scores_without_a_verdict(tiny_backbone: Path, tmp_path: Path) -> None:
    detector = with_model(fit(tiny_backbone, part_pixels(0)), calibration=None)
    again = Detector.load(detector.save(tmp_path / "one.procon"), device="cpu")
    assert again.calibration is None
    for prediction in (detector.predict(part_pixels(1)), again.predict(part_pixels(1))):
        assert prediction.score > 0
        assert prediction.heatmap.shape == (96, 80)
        assert (prediction.is_anomalous, prediction.threshold, prediction.p_value) == (None, None, None)
        assert prediction.regions == ()


# ---------------------------------------------------------------------------------------------------------- progress


def test_progress_tells_each_stage_from_start_to_end(tiny_backbone: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    Detector(tiny_config(tiny_backbone, banks=3), device="cpu").fit(
        good_parts(4), progress=lambda *now: heard.append(now)
    )
    assert list(dict.fromkeys(stage for stage, _, _ in heard)) == list(STAGES)
    size = int(0.3 * 4 * 25)
    for stage in STAGES:
        steps = [(done, total) for name, done, total in heard if name == stage]
        assert {total for _, total in steps} == {2 * 3 * size if stage == "selecting anchors" else 4}
        assert all(earlier <= later for (earlier, _), (later, _) in pairwise(steps))
        assert steps[0][0] > 0
        assert steps[-1][0] == steps[-1][1]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every feature store on disk, and the folder its files appear in."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("procon.model.reader.FeatureStore", partial(FeatureStore, limit=0))
    return tmp_path


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_fit_changes_nothing_and_leaves_nothing(
    stage: str, tiny_backbone: Path, temporary: Path
) -> None:
    used_disk = False

    def interrupt(name: str, done: int, _total: int) -> None:
        nonlocal used_disk
        used_disk |= any(temporary.iterdir())
        if name == stage and done > 1:
            raise KeyboardInterrupt

    detector = Detector(tiny_config(tiny_backbone), device="cpu")
    with pytest.raises(KeyboardInterrupt):
        detector.fit(good_parts(3), progress=interrupt)
    assert used_disk
    assert not any(temporary.iterdir())
    with pytest.raises(NotFittedError):
        detector.predict(part_pixels(1))
    before = detector.fit(good_parts(2)).predict(part_pixels(1))
    with pytest.raises(KeyboardInterrupt):
        detector.fit(good_parts(3), progress=interrupt)
    assert not any(temporary.iterdir())
    assert_same(detector.predict(part_pixels(1)), before)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_nothing_works_before_fit(tiny_backbone: Path, tmp_path: Path) -> None:
    detector = Detector(tiny_config(tiny_backbone), device="cpu")
    for attempt in (
        lambda: detector.predict(part_pixels(0)),
        lambda: next(detector.predict_each([part_pixels(0)])),
        lambda: detector.save(tmp_path / "no.procon"),
    ):
        with pytest.raises(NotFittedError, match="fit"):
            attempt()
    assert not any(tmp_path.iterdir())


def test_a_bad_image_in_a_batch_loses_nothing(detector: Detector, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    batch = [part_pixels(0), tmp_path / "broken.png", part_pixels(1), tmp_path / "absent.png"]
    with pytest.raises(BatchError, match=r"2 images cannot be used:[\s\S]*broken\.png[\s\S]*absent\.png") as caught:
        detector.predict(batch)
    assert caught.value.errors.keys() == {1, 3}
    first, nothing, third, absent = caught.value.results
    assert nothing is absent is None
    assert_same(first, detector.predict(part_pixels(0)))
    assert_same(third, detector.predict(part_pixels(1)))
    with pytest.raises(ImageError, match=r"broken\.png"):
        detector.predict(tmp_path / "broken.png")


def test_fit_reads_and_decodes_every_file_once(
    tiny_backbone: Path, good_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    decoded: list[object] = []

    def count_open(path: Path, *arguments: Any, **settings: Any) -> Any:
        opened.append(path.name)
        return open_file(path, *arguments, **settings)

    def count_decode(*arguments: Any, **settings: Any) -> Any:
        decoded.append(arguments[0])
        return decode(*arguments, **settings)

    open_file, decode = Path.open, Image.open
    monkeypatch.setattr(Path, "open", count_open)
    monkeypatch.setattr(Image, "open", count_decode)
    Detector(tiny_config(tiny_backbone), device="cpu").fit(good_folder)
    names = sorted(path.name for path in good_folder.iterdir())
    assert sorted(name for name in opened if name.endswith(".png")) == names
    assert len(decoded) == len(names)


def test_a_bad_training_image_is_refused_before_anything_is_selected(tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    images = [part_pixels(0), tmp_path / "broken.png", part_pixels(1)]
    detector = Detector(tiny_config(tiny_backbone), device="cpu")
    heard: set[str] = set()
    with pytest.raises(BatchError, match=r"1 image cannot be used:\n.*broken\.png") as caught:
        detector.fit(images, progress=lambda stage, _done, _total: heard.add(stage))
    assert caught.value.errors.keys() == {1}
    assert heard == {"reading images"}
    assert detector.memory is None
    skipped = detector.fit(images, skip_bad=True)
    assert_same(skipped.predict(part_pixels(2)), fit(tiny_backbone, good_parts(2)).predict(part_pixels(2)))
    with pytest.raises(BatchError):
        detector.fit([tmp_path / "broken.png"], skip_bad=True)


def test_fit_on_nothing_is_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="at least one good image"):
        fit(tiny_backbone, [])
    with pytest.raises(ImageError, match="holds no images"):
        fit(tiny_backbone, tmp_path)


def test_more_neighbours_than_patches_are_refused_at_fit(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match=r"num_neighbors must be at most the 25 patches .* got 26"):
        fit(tiny_backbone, part_pixels(0), num_neighbors=26)


@pytest.mark.parametrize("device", ["nonsense", "meta", "mps", "cuda:", "cuda:99", "cpu0", ""])
def test_devices_that_are_not_here_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device must be .* got '{device}'"):
        Detector(Config(), device=device)


# ------------------------------------------------------------------------------------------------------ model files


@pytest.fixture
def own_backbone(tmp_path: Path) -> Path:
    """Weights that a test may move or delete."""
    return write_tiny_backbone(tmp_path / "weights")


def test_an_embedded_backbone_needs_no_weights(own_backbone: Path, tmp_path: Path) -> None:
    detector = fit(own_backbone, good_parts(3))
    path = detector.save(tmp_path / "whole.procon", embed_backbone=True)
    shutil.rmtree(own_backbone)
    assert_same(Detector.load(path, device="cpu").predict(part_pixels(9)), detector.predict(part_pixels(9)))


def test_weights_that_moved_can_be_named(own_backbone: Path, tmp_path: Path) -> None:
    detector = fit(own_backbone, good_parts(3))
    path = detector.save(tmp_path / "part.procon")
    moved = own_backbone.rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="weights: no such file or folder"):
        Detector.load(path, device="cpu")
    assert_same(
        Detector.load(path, weights=moved, device="cpu").predict(part_pixels(9)), detector.predict(part_pixels(9))
    )


def test_other_weights_are_refused(detector: Detector, tmp_path: Path) -> None:
    other = write_tiny_backbone(tmp_path / "other", seed=1)
    path = detector.save(tmp_path / "part.procon", embed_backbone=True)
    with pytest.raises(ModelFileError, match=r"part\.procon: was fitted with other backbone weights .*path:.*other"):
        Detector.load(path, weights=other, device="cpu")


def test_a_file_whose_content_does_not_fit_together_is_refused(detector: Detector, tmp_path: Path) -> None:
    path = detector.save(tmp_path / "part.procon")
    tensors, metadata = storage.read_model(path)

    def refusal(**changes: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "check_written", lambda *_: None)
            storage.write_model(path, tensors, {**metadata, **changes})
        with pytest.raises(ModelFileError, match=r"part\.procon: its content does not fit together") as caught:
            Detector.load(path, device="cpu")
        return str(caught.value)

    assert "memory 0" in refusal(images=metadata["images"][:1])
    assert "fit together (images[0] has no size, digest)" in refusal(images=[{"name": "a.png"}] * 8)
    assert "backbone has no fingerprint, architecture" in refusal(
        backbone={name: metadata["backbone"][name] for name in ("source", "sha256", "embedded")}
    )
    assert "the settings call for 1 memories, the file has 2" in refusal(config={**metadata["config"], "layers": [-1]})
    assert "the settings call for 3 banks of at least 3" in refusal(config={**metadata["config"], "banks": 3})
    assert "the settings call for 2 banks of at least 99" in refusal(config={**metadata["config"], "num_neighbors": 99})
    assert "cannot have 25 patches" in refusal(config={**metadata["config"], "image_size": 84})
    assert "dimensions, the settings call for [16, 16]" in refusal(config={**metadata["config"], "projection_dim": 16})
    known = metadata["calibration"]
    shorter = {name: known[name][1:] for name in ("scores", "peaks", "medians")}
    assert "7 calibration scores for 8 training images" in refusal(calibration={**known, **shorter})
    assert "got 8 scores, 7 peaks" in refusal(calibration={**known, "peaks": known["peaks"][1:]})
    assert "peaks[0] must be a number" in refusal(calibration={**known, "peaks": [1e300] * 8})
    assert "kind must be one of" in refusal(calibration={**known, "kind": "guessed"})
    assert "history[0] has no when, images" in refusal(history=[{"what": "added"}])
    assert "unheard_of" in refusal(config={**metadata["config"], "unheard_of": 1})
    assert "banks must be" in refusal(config={**metadata["config"], "banks": 0})
    assert "calibration has no peaks, medians" in refusal(calibration={"scores": [1.0]})
