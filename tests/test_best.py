"""Config.best(): an image score relative to what anchors leave on good images, and maps moved towards one quartile."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from procon import Config, ConfigError, Detector, ImageError, ModelFileError
from procon.config import BEST
from procon.method.levels import PRIOR
from procon.method.neighbors import nearest_in_banks
from procon.method.score import Reading, fuse, levels_without_own, read_layers, shift_maps
from procon.model.calibration import Calibration
from procon.model.fitting import leave_one_out
from procon.progress import no_progress
from procon.vision.images import open_image
from tests import reference
from tests.conftest import part_pixels, tiny_config, with_model

BOTH: dict[str, Any] = {"score_relative_to": "anchors", "map_offset": 1.0}


@pytest.fixture(scope="module")
def fitted(tiny_backbone: Path, good_folder: Path) -> Detector:
    return Detector(tiny_config(tiny_backbone, **BOTH), device="cpu").fit(good_folder)


def features_of(detector: Detector, image: Any) -> list[torch.Tensor]:
    ((_, pixels),) = detector.reader.extractor.batches([open_image(image)])
    return detector.reader.extractor.features(pixels)


# ------------------------------------------------------------------------------------------------------- the settings


def test_best_is_the_recipe_of_its_page_and_the_default_stays_the_paper() -> None:
    best, paper = Config.best(), Config()
    assert {name: getattr(best, name) for name in BEST} == BEST
    assert replace(best, **{name: getattr(paper, name) for name in BEST}) == paper
    assert (paper.score_relative_to, paper.map_offset) == ("nothing", 0)


def test_best_takes_settings_of_ones_own() -> None:
    assert Config.best(banks=3, backbone="dinov2-small").banks == 3
    assert Config.best(backbone="dinov2-small").coreset_ratio == BEST["coreset_ratio"]
    with pytest.raises(TypeError):
        Config.best(no_such=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"score_relative_to": "anchors", "readout": "hard"},
        {"score_relative_to": "anchors", "normalization": "train"},
        {"map_offset": 1.0, "normalization": "robust"},
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"must be ('nothing'|0) unless"):
        Config(**settings)


def test_the_flag_starts_from_the_recipe(run: Callable[..., tuple[int, str, str]], tiny_backbone: Path,
                                         good_folder: Path, tmp_path: Path) -> None:  # fmt: skip
    given = ("--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", 70, "--set", "layers=-1,-3")
    code, _, err = run(
        "fit", good_folder, "-o", tmp_path / "part.procon", "--recipe", "best", *given, "--coreset-ratio", 0.3
    )
    assert code == 0, err
    config = Detector.load(tmp_path / "part.procon", device="cpu").config
    assert config.score_relative_to == "anchors" and config.map_offset == BEST["map_offset"] and config.banks == 1
    assert (config.image_size, config.layers, config.coreset_ratio) == (70, (-1, -3), 0.3)


# ------------------------------------------------------------------------------------------------------- the numbers


def slow_reading(
    detector: Detector, image: Any, own: int | None, *, stand_ins: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """S_map and what the image score averages, [P] each, in plain loops over the anchors of the memory."""
    memory, k = detector.memory, detector.config.num_neighbors
    assert memory is not None

    def look(features: np.ndarray, anchors: np.ndarray) -> tuple[list[float], list[np.ndarray], list[list[int]]]:
        distances, rows = reference.nearest(features, anchors, k)
        tau, values, shares = float(np.median(distances)), [], []
        for patch, near, neighbors in zip(features, distances, rows, strict=True):
            weight = np.exp(-(near - near[0]) / tau)
            weight = weight / weight.sum()
            projection = sum(w * anchors[j] for w, j in zip(weight, neighbors, strict=True))
            values.append(float(np.linalg.norm(patch - projection)))
            shares.append(weight)
        return values, shares, rows.tolist()

    mine = [layer[0].double().numpy() for layer in features_of(detector, image)]
    plain: list[np.ndarray] = []
    relative: list[np.ndarray] = []
    for index, layer in enumerate(memory.layers):
        sides: tuple[list[list[float]], list[list[float]]] = ([], [])
        for bank in layer.banks:
            anchors, source = layer.anchors[bank].double().numpy(), layer.origin[bank].numpy() // memory.patches
            known: list[list[tuple[float, float]]] = [[] for _ in bank]
            everyone: list[float] = []
            for number, name in enumerate(memory.names):
                if number == own:
                    continue
                others = np.flatnonzero(source != number)
                good = features_of(detector, name)[index][0].double().numpy()
                values, shares, rows = look(good, anchors[others])
                everyone += values
                for value, share, neighbors in zip(values, shares, rows, strict=True):
                    for weight, place in zip(share, neighbors, strict=True):
                        known[others[place]].append((value, float(weight)))
            overall = float(np.mean(everyone)), float(np.mean(np.square(everyone)))
            levels = [reference.normal_level([v for v, _ in one], [w for _, w in one], overall, PRIOR) for one in known]
            seen = np.arange(len(bank)) if own is None else np.flatnonzero(source != own)
            if stand_ins:  # stand-ins for its own anchors; levels are those of the anchors they stand for
                everything = np.stack([features_of(detector, name)[index][0].double().numpy() for name in memory.names])
                spare = reference.stand_ins(
                    everything, anchors, layer.origin[bank].tolist(), [list(range(len(bank)))], k
                )
                vectors = [spare[row] if source[row] == own else anchors[row] for row in range(len(bank))]
                seen = np.array([row for row in range(len(bank)) if vectors[row] is not None])
                anchors = np.stack([vector for vector in vectors if vector is not None])
            values, shares, rows = look(mine[index], anchors if stand_ins else anchors[seen])
            sides[0].append(values)
            sides[1].append(
                [
                    value / sum(w * levels[seen[j]] for w, j in zip(share, neighbors, strict=True))
                    for value, share, neighbors in zip(values, shares, rows, strict=True)
                ]
            )
        for whole, side in zip((plain, relative), sides, strict=True):
            whole.append(reference.bank_consensus(np.array(side)))
    return reference.layer_consensus(np.array(plain), "mean"), reference.layer_consensus(np.array(relative), "mean")


def read_image(detector: Detector, image: Any, own: int | None, config: Config | None = None) -> Reading:
    """The reading of an image; of training image ``own`` as the fit reads it, without its own anchors."""
    memory, config = detector.model.memory, config or detector.config
    hidden = None if own is None else memory.own([own])
    layers = read_layers(features_of(detector, image), memory, config, hidden=hidden)
    relative = own is not None and config.score_relative_to == "anchors"
    return fuse(layers, memory, config, levels=levels_without_own(layers, memory) if relative else None)


@pytest.mark.parametrize("own", [None, 3])
def test_readings_are_those_of_plain_loops(fitted: Detector, own: int | None) -> None:
    assert fitted.memory is not None and fitted.memory.quartile is not None
    image: Any = part_pixels(50, defect=True) if own is None else fitted.memory.names[own]
    found = read_image(fitted, image, own)
    scores, relative = slow_reading(fitted, image, own)
    np.testing.assert_allclose(found.scores[0].numpy(), scores, rtol=2e-5)
    np.testing.assert_allclose(found.ranked[0].numpy(), relative, rtol=2e-4)
    for offset in (0.0, 0.25, 1.0):
        config = replace(fitted.config, map_offset=offset)
        shifted = scores + offset * (fitted.memory.quartile - reference.lower_quartile(list(scores)))
        heat = shift_maps(found.scores, fitted.memory.quartile, config)[0].numpy()
        np.testing.assert_allclose(heat, shifted, rtol=2e-5, atol=1e-6)
        assert offset != fitted.config.map_offset or np.array_equal(found.heat[0].numpy(), heat)


def test_the_quartile_is_that_of_good_images_scored_as_new(fitted: Detector) -> None:
    memory = fitted.memory
    assert memory is not None and memory.quartile is not None
    plain = replace(fitted.config, score_relative_to="nothing", map_offset=0.0)
    quartiles = [
        reference.lower_quartile(read_image(fitted, name, number, plain).scores[0].tolist())
        for number, name in enumerate(memory.names)
    ]
    assert memory.quartile == pytest.approx(reference.median(quartiles), rel=1e-6)


def test_a_detector_scores_with_both(fitted: Detector) -> None:
    good, bad = part_pixels(50), part_pixels(51, defect=True)
    found = fitted.predict([good, bad])
    assert found[1].score > found[0].score
    scores, relative = slow_reading(fitted, bad, None)
    assert found[1].score == pytest.approx(reference.top_mean(relative, fitted.config.top_ratio), rel=2e-4)
    assert found[1].median_patch_score == pytest.approx(reference.median(list(scores)), rel=2e-5), (
        "drift needs S_map unshifted"
    )
    plain = Detector(replace(fitted.config, score_relative_to="nothing", map_offset=0.0), device="cpu")
    plain.fit(list(fitted.memory.names if fitted.memory else []))
    (one,) = plain.predict([bad])
    shift = found[1].heatmap - one.heatmap
    assert float(np.ptp(shift)) < 1e-5 and abs(float(shift.mean())) > 1e-6, "the map is shifted as a whole"


def test_the_threshold_is_that_of_training_images_without_themselves(fitted: Detector) -> None:
    assert fitted.memory is not None and fitted.calibration is not None
    for number in (0, 5):
        relative = slow_reading(fitted, fitted.memory.names[number], number, stand_ins=True)[1]
        expected = reference.top_mean(relative, fitted.config.top_ratio)
        assert fitted.calibration.scores[number] == pytest.approx(expected, rel=2e-4)


def test_a_score_does_not_depend_on_the_batch(fitted: Detector) -> None:
    images = [part_pixels(seed, defect=seed % 2 == 0) for seed in range(60, 64)]
    together, alone = fitted.predict(images), [fitted.predict(image) for image in images]
    assert [one.score for one in together] == [one.score for one in alone]
    assert all(np.array_equal(a.heatmap, b.heatmap) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("settings", [{"score_relative_to": "anchors"}, {"map_offset": 1.0}, {"map_offset": 0.25}])
def test_each_works_alone(tiny_backbone: Path, good_folder: Path, settings: dict[str, Any]) -> None:
    detector = Detector(tiny_config(tiny_backbone, **settings), device="cpu").fit(good_folder)
    assert detector.memory is not None
    assert (detector.memory.quartile is None) == ("map_offset" not in settings)
    assert (detector.memory.layers[0].sums is None) == ("score_relative_to" not in settings)
    assert np.isfinite(detector.predict(part_pixels(50)).score)


def test_a_region_of_interest_counts_alone(tiny_backbone: Path, good_folder: Path) -> None:
    corners = [(10, 10), (70, 10), (70, 60), (10, 60)]
    detector = Detector(tiny_config(tiny_backbone, **BOTH), device="cpu").fit(good_folder, roi=corners)
    assert detector.memory is not None and detector.memory.layers[0].sums is not None
    counted = float(detector.memory.layers[0].sums[0, 0].sum())  # the weights of a patch sum to 1
    patches = detector.reader.selectable_rows(detector.memory.images, detector.memory.roi)
    assert patches is not None and counted == pytest.approx(len(patches))
    outside = part_pixels(70)
    outside[80:95, 5:75] = (250, 30, 30)
    assert detector.predict(outside).score < detector.predict(part_pixels(71, defect=True)).score


# ------------------------------------------------------------------------------------------------------- the model


def test_save_and_load(fitted: Detector, tmp_path: Path) -> None:
    again = Detector.load(fitted.save(tmp_path / "part.procon"), device="cpu")
    image = part_pixels(80, defect=True)
    one, other = fitted.predict(image), again.predict(image)
    assert one.score == other.score and np.array_equal(one.heatmap, other.heatmap)
    assert again.calibration == fitted.calibration


def test_a_file_without_what_the_settings_need_is_refused(fitted: Detector, tmp_path: Path) -> None:
    assert fitted.memory is not None
    for memory, words in (
        (replace(fitted.memory, quartile=None), "lower quartile"),
        (
            replace(fitted.memory, layers=tuple(replace(one, sums=None) for one in fitted.memory.layers)),
            "anchors leave",
        ),
    ):
        broken = with_model(fitted, memory=memory)
        with pytest.raises(ModelFileError, match=words):
            Detector.load(broken.save(tmp_path / "part.procon"), device="cpu")
        with pytest.raises(ConfigError, match="fit again"):
            broken.predict(part_pixels(0))


@pytest.mark.parametrize("settings", [{"score_relative_to": "anchors", "map_offset": 1.0}, {"normalization": "train"}])
def test_an_edited_memory_is_measured_again(
    tiny_backbone: Path, good_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    def measured(detector: Detector) -> list[Any]:
        """What a memory knows of good images, and what is said of an image and of the training images."""
        memory, known = detector.memory, detector.calibration
        assert memory is not None and known is not None
        layers = [(layer.scale, None if layer.sums is None else layer.sums.tolist()) for layer in memory.layers]
        return [layers, memory.quartile, known.scores, known.peaks, detector.predict(part_pixels(91, True)).score]

    def afresh(detector: Detector) -> list[Any]:
        """The same of the memory's anchors alone, measured from nothing."""
        assert detector.memory is not None
        bare = [replace(layer, sums=None, scale=(0.0, 1.0)) for layer in detector.memory.layers]
        memory = replace(detector.memory, layers=tuple(bare), quartile=None)
        sources, reader = detector.sources.find(memory.images), detector.reader
        memory, scores = leave_one_out(reader, memory, lambda: reader.embed_each(sources), no_progress)
        assert scores is not None
        again = Calibration.of(scores, detector.config.false_alarm_rate)
        return measured(with_model(detector, memory=memory, calibration=again))

    detector = Detector(tiny_config(tiny_backbone, **settings), device="cpu").fit(good_folder)
    before = measured(detector)
    detector.partial_fit([part_pixels(90), part_pixels(92)])
    added = measured(detector)
    assert added != before and added == afresh(detector)
    detector.forget(detector.memory.names[0] if detector.memory else "")
    assert measured(detector) != added and measured(detector) == afresh(detector)
    for seed in range(60, 66):
        Image.fromarray(part_pixels(seed)).save(tmp_path / f"{seed}.png")
    detector.merge(Detector(detector.config, device="cpu").fit(tmp_path))
    assert measured(detector) == afresh(detector)
    again = Detector.load(detector.save(tmp_path / "part.procon"), device="cpu")
    assert again.predict(part_pixels(91, True)).score == detector.predict(part_pixels(91, True)).score
    with pytest.raises(ImageError, match="scores depend on how the changed memory reads them"):
        again.forget(good_folder / "003.png")  # images of memory only are gone with the process


def test_one_good_image_is_too_few(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match="needs more training images"):
        Detector(tiny_config(tiny_backbone, **BOTH), device="cpu").fit([part_pixels(0)])


def test_evidence_and_suspects_work(fitted: Detector, tmp_path: Path) -> None:
    image = tmp_path / "bad.png"
    Image.fromarray(part_pixels(50, defect=True)).save(image)
    found = fitted.explain(image)
    scores = slow_reading(fitted, image, None)[0]
    assert found.score == pytest.approx(float(scores[found.patch[0] * 5 + found.patch[1]]), rel=2e-5)
    assert len(fitted.suspects()) == 8


def test_calibrating_again_gives_the_same_threshold(fitted: Detector, tmp_path: Path) -> None:
    again = Detector.load(fitted.save(tmp_path / "part.procon"), device="cpu")
    again.calibrate()
    assert fitted.calibration is not None and again.calibration is not None
    assert again.calibration.scores == pytest.approx(fitted.calibration.scores, rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_it_is_as_on_the_cpu(tiny_backbone: Path, good_folder: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_backbone, precision="fp32", **BOTH)
    here, there = (Detector(config, device=device).fit(good_folder) for device in ("cpu", "cuda"))
    images = [part_pixels(50), part_pixels(51, defect=True)]
    for one, other in zip(here.predict(images), there.predict(images), strict=True):
        assert other.score == pytest.approx(one.score, rel=1e-3)
        np.testing.assert_allclose(other.heatmap, one.heatmap, rtol=1e-3, atol=1e-4)
    assert here.calibration is not None and there.calibration is not None
    assert there.calibration.scores == pytest.approx(here.calibration.scores, rel=1e-3)
    again = Detector.load(there.save(tmp_path / "part.procon"), device="cuda")
    assert again.predict(images[1]).score == there.predict(images[1]).score


def test_fit_searches_every_training_image_once(
    tiny_backbone: Path, good_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def search(*arguments: Any, **settings: Any) -> Any:
        searched.append(len(arguments[0]))
        return nearest_in_banks(*arguments, **settings)

    monkeypatch.setattr("procon.method.score.nearest_in_banks", search)
    config = tiny_config(tiny_backbone, **BOTH)
    once = Detector(config, device="cpu").fit(good_folder)
    assert len(searched) == 8 * len(config.layers)
    monkeypatch.setattr("procon.model.fitting.KEPT_BYTES", 0)  # too many to keep: searched again, with the same result
    twice = Detector(config, device="cpu").fit(good_folder)
    assert len(searched) == 3 * 8 * len(config.layers)
    assert once.calibration == twice.calibration
