"""Images added, forgotten and merged: what stays, what goes, and a threshold that follows."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from procon import ConfigError, Detector, ImageError, NotFittedError
from procon.model.memory import LayerMemory, Memory
from procon.model.selection import FeatureStore, add_images, growth_size, merge_memories, remove_images
from procon.model.training_image import TrainingImage
from tests import reference
from tests.conftest import part_pixels, tiny_config, with_model, write_tiny_backbone
from tests.method.layers import k_center_from

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is written at 14:30:05, and each further entry a second later."""
    seconds = itertools.count(5)
    monkeypatch.setattr("procon.model.editing.utc", lambda: f"2025-03-09T14:30:{next(seconds):02d}Z")


def write_parts(folder: Path, seeds: range) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seed:03d}.png" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        Image.fromarray(part_pixels(seed)).save(path)
    return paths


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_parts(tmp_path / "good", range(8))


Fit = Callable[..., Detector]


@pytest.fixture
def fit(tiny_backbone: Path) -> Fit:
    def call(images: object, **settings: object) -> Detector:
        return Detector(tiny_config(tiny_backbone, **settings), device="cpu").fit(images)

    return call


def memory_of(detector: Detector) -> Memory:
    assert detector.memory is not None
    return detector.memory


def origins(memory: Memory) -> list[list[list[tuple[str, int]]]]:
    """(image name, patch) of every anchor, by layer and bank, in order of picking."""
    return [
        [
            [(memory.images[o // memory.patches].name, o % memory.patches) for o in layer.origin[bank].tolist()]
            for bank in layer.banks
        ]
        for layer in memory.layers
    ]


def vectors(memory: Memory) -> list[dict[tuple[str, int], bytes]]:
    """The vector of every anchor by where it came from, by layer."""
    return [
        {
            (memory.images[o // memory.patches].name, o % memory.patches): anchor.numpy().tobytes()
            for o, anchor in zip(layer.origin.tolist(), layer.anchors, strict=True)
        }
        for layer in memory.layers
    ]


def leave_one_out(detector: Detector, images: list[Path]) -> list[float]:
    """Scores of training images as if the memory had been built without them, the long way."""
    memory, scores = memory_of(detector), []
    embedded = [features for features, _ in detector.reader.embed_each(images)]
    spare = []
    for index, layer in enumerate(memory.layers):
        features = torch.cat([image[index] for image in embedded]).double().numpy()
        found = reference.stand_ins(
            features, layer.anchors.double().numpy(), layer.origin.tolist(), layer.banks.tolist(), 3
        )
        # an anchor without a stand-in becomes a copy far away from everything
        pairs = zip(found, layer.anchors, strict=True)
        spare.append(torch.stack([a + 1e3 if s is None else torch.from_numpy(s).float() for s, a in pairs]))
    for number, image in enumerate(images):
        layers = []
        for vectors, layer in zip(spare, memory.layers, strict=True):
            own = (layer.origin // memory.patches == number).unsqueeze(1)
            layers.append(replace(layer, anchors=torch.where(own, vectors, layer.anchors)))
        scores.append(with_model(detector, memory=replace(memory, layers=tuple(layers))).predict(image).score)
    return scores


# ------------------------------------------------------------------------------------------------- pure functions


def make_memory(seed: int, images: int, patches: int, size: int, dim: int = 6) -> tuple[Memory, torch.Tensor]:
    """A memory of one layer and two banks over random features [images * patches, dim]."""
    features = torch.randn(images * patches, dim, generator=torch.Generator().manual_seed(seed))
    picks = torch.stack(
        [torch.randperm(len(features), generator=torch.Generator().manual_seed(b))[:size] for b in (1, 2)]
    )
    origin, banks = picks.unique(return_inverse=True)
    described = tuple(TrainingImage(f"{seed}/{i}", (10, 10), f"file:{seed}/{i}") for i in range(images))
    return Memory((LayerMemory(features[origin], origin, banks),), described, patches), features


def test_growth_is_the_ratio_of_the_new_patches() -> None:
    assert growth_size(784, 0.05, 2000, None) == 39
    assert growth_size(784, 0.05, 2000, 2010) == 10
    assert growth_size(784, 0.05, 2000, 2000) == growth_size(784, 0.05, 2001, 2000) == 0
    assert growth_size(25, 0.01, 9, None) == 1  # an image adds something


def test_extending_continues_each_banks_traversal() -> None:
    memory, _ = make_memory(0, 4, 10, 12)
    new = torch.randn(20, 6, generator=torch.Generator().manual_seed(9))
    selection = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    with FeatureStore(2, 10, [6]) as store:
        store.put(0, [new.view(2, 10, 6)])
        described = [TrainingImage(name, (10, 10), f"file:{name}") for name in ("x", "y")]
        heard: list[int] = []
        grown = add_images(memory, store, described, [selection], 7, CPU, heard.append)
    (before,), (after,) = memory.layers, grown.layers
    assert grown.images == (*memory.images, *described)
    assert heard == [7, 14]
    for bank in range(2):
        assert torch.equal(after.origin[after.banks[bank]][:12], before.origin[before.banks[bank]])
        expected = k_center_from(new @ selection, before.bank(bank) @ selection, 7)
        assert torch.equal(after.origin[after.banks[bank]][12:] - 40, expected)
        assert torch.equal(after.bank(bank)[12:], new[expected])
    assert torch.equal(after.origin, after.origin.unique())


@pytest.mark.parametrize("gone", [{0}, {3}, {1, 2}])
def test_forgetting_leaves_the_anchors_of_the_others(gone: set[int]) -> None:
    memory, features = make_memory(5, 4, 10, 15)
    rest = remove_images(memory, gone)
    assert [image.name for image in rest.images] == [f"5/{i}" for i in range(4) if i not in gone]
    kept = [[origin for origin in layer if int(origin[0].split("/")[1]) not in gone] for layer in origins(memory)[0]]
    length = min(map(len, kept))
    assert origins(rest)[0] == [bank[:length] for bank in kept]
    for name, patch in vectors(rest)[0]:
        row = int(name.split("/")[1]) * 10 + patch
        assert vectors(rest)[0][name, patch] == features[row].numpy().tobytes()


def test_forgetting_in_steps_or_at_once_is_the_same_where_no_bank_is_shortened() -> None:
    memory, _ = make_memory(2, 5, 8, 40)  # every patch is an anchor of both banks
    steps, at_once = remove_images(remove_images(memory, {1}), {2}), remove_images(memory, {1, 3})
    assert origins(steps) == origins(at_once)
    assert vectors(steps) == vectors(at_once)


@pytest.mark.parametrize("cap", [None, 11])
def test_a_merged_bank_is_a_traversal_of_both(cap: int | None) -> None:
    one, _ = make_memory(1, 3, 10, 9)
    other, _ = make_memory(2, 2, 10, 8)
    both = merge_memories(one, other, [None], cap)
    assert both.images == one.images + other.images
    for bank in range(2):
        union = origins(one)[0][bank] + origins(other)[0][bank]
        found = origins(both)[0][bank]
        assert found[0] == union[0]
        assert len(found) == (cap or 17) and set(found) <= set(union)
        if cap is None:
            assert set(found) == set(union)
        distances = [
            float((both.layers[0].bank(bank)[:step] - both.layers[0].bank(bank)[step]).norm(dim=1).min())
            for step in range(1, len(found))
        ]
        assert distances == sorted(distances, reverse=True)  # farthest first


# ------------------------------------------------------------------------------------------------------ partial_fit


def test_adding_keeps_what_was_there_and_grows_by_the_ratio(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    before = memory_of(detector)
    assert detector.partial_fit(paths[5:]) is detector
    after = memory_of(detector)
    assert after.names == tuple(map(str, paths))
    size = int(0.3 * 3 * 25)
    for old, new in zip(origins(before), origins(after), strict=True):
        for short, long in zip(old, new, strict=True):
            assert long[: len(short)] == short
            assert len(long) == len(short) + size
            assert {name for name, _ in long[len(short) :]} <= set(map(str, paths[5:]))
    assert [change.to_dict() for change in detector.history] == [
        {"when": "2025-03-09T14:30:05Z", "what": "added", "images": [str(path) for path in paths[5:]], "count": 3}
    ]


def test_adding_calibrates_every_image_anew(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    old = detector.calibration
    detector.partial_fit(paths[5:])
    known = detector.calibration
    assert old is not None and known is not None
    assert known.kind == "leave-one-out" and known.kept == 0
    assert known.scores == pytest.approx(leave_one_out(detector, paths), rel=1e-5)
    assert known.scores[:5] != old.scores


def test_a_model_of_one_image_gets_its_threshold_with_the_next(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[0])
    assert detector.calibration is not None and detector.calibration.kind == "mirrored"
    detector.partial_fit(paths[1:3])
    known = detector.calibration
    assert known is not None and known.kind == "leave-one-out"
    assert known.scores == pytest.approx(leave_one_out(detector, paths[:3]), rel=1e-5)


def test_images_without_a_path_can_be_added_to_and_forgotten(fit: Fit, tmp_path: Path) -> None:
    detector = fit([part_pixels(seed) for seed in range(4)])
    detector.partial_fit([part_pixels(seed) for seed in (4, 5)])
    assert memory_of(detector).names == tuple(f"image {number}" for number in range(6))
    detector.forget("image 1").partial_fit(part_pixels(7))
    assert memory_of(detector).names == ("image 0", "image 2", "image 3", "image 4", "image 5", "image 6")
    known = detector.calibration
    assert known is not None and len(known.scores) == 6 and known.kept == 0
    loaded = Detector.load(detector.save(tmp_path / "a.procon"), device="cpu")
    with pytest.raises(ImageError, match=r"5 of 5 images behind .* image 0: is no longer there; .* keep_scores"):
        loaded.forget("image 5")
    loaded.forget("image 5", keep_scores=True)
    assert loaded.calibration is not None
    assert loaded.calibration.scores == known.scores[:4] + known.scores[5:]
    assert loaded.calibration.kept == 5
    assert "5 of the scores are from before" in loaded.calibration.describe()[-1]


def test_thumbnails_follow_the_memory(fit: Fit, paths: list[Path], tiny_backbone: Path) -> None:
    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(paths[:4], thumbnails=True)
    detector.partial_fit(paths[4])
    assert all(image.thumbnail.startswith(b"\xff\xd8") for image in memory_of(detector).images)
    detector.partial_fit(paths[5], thumbnails=False)
    assert [bool(image.thumbnail) for image in memory_of(detector).images] == [True] * 5 + [False]
    plain = fit(paths[:4]).partial_fit(paths[4])
    assert not any(image.thumbnail for image in memory_of(plain).images)


def test_a_threshold_by_hand_and_a_rate_survive_a_change(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5]).calibrate(false_alarm_rate=0.3).set_threshold(0.123)
    detector.partial_fit(paths[5])
    assert detector.calibration is not None
    assert (detector.calibration.threshold, detector.calibration.false_alarm_rate) == (0.123, 0.3)
    assert detector.config.false_alarm_rate == 0.3


def test_a_held_out_calibration_is_repeated_on_its_own_images(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:4]).calibrate(paths[6:])
    detector.partial_fit(paths[4])
    known = detector.calibration
    assert known is not None and known.kind == "held-out"
    assert known.scores == tuple(result.score for result in detector.predict(paths[6:]))
    detector.forget(paths[0])
    assert detector.calibration is not None
    assert detector.calibration.scores == tuple(result.score for result in detector.predict(paths[6:]))
    with pytest.raises(ImageError, match=r"007\.png: the threshold was calibrated on it"):
        detector.partial_fit(paths[7])


def test_what_is_in_the_memory_already_is_refused(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    detector = fit(paths[:4])
    copy = tmp_path / "copy.png"
    copy.write_bytes(paths[1].read_bytes())
    with pytest.raises(ImageError, match=r"copy\.png: is in the memory already; leave it out \(as .*001\.png\)"):
        detector.partial_fit([paths[5], copy])
    with pytest.raises(ImageError, match=r"000\.png: is in the memory already; leave it out$"):
        detector.partial_fit(paths[0])
    Image.fromarray(part_pixels(50)).save(paths[0])
    with pytest.raises(ImageError, match=r"000\.png: the memory holds another image of this name; forget that first"):
        detector.partial_fit(paths[0])
    assert memory_of(detector).names == tuple(map(str, paths[:4]))
    assert detector.history == ()


def test_full_banks_are_refused(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:4], max_anchors=20)
    with pytest.raises(ConfigError, match="the banks are full: max_anchors is 20; fit again with a higher one"):
        detector.partial_fit(paths[4])
    assert memory_of(fit(paths[:4], max_anchors=33).partial_fit(paths[4])).layers[0].banks.shape == (2, 33)


@pytest.mark.parametrize("settings", [{"coreset": "random"}, {"coreset": "dense"}])
def test_memories_of_another_kind_are_refused(fit: Fit, paths: list[Path], settings: dict[str, object]) -> None:
    detector = fit(paths[:4], **settings)
    for change in (detector.partial_fit, detector.forget):
        with pytest.raises(ConfigError, match=r"coreset must be 'k-center' in a memory that is edited: .*; fit again"):
            change(paths[4])


def test_nothing_can_be_changed_before_a_fit(tiny_backbone: Path, paths: list[Path]) -> None:
    detector = Detector(tiny_config(tiny_backbone), device="cpu")
    for attempt in (
        lambda: detector.partial_fit(paths[0]),
        lambda: detector.forget(paths[0]),
        lambda: detector.calibrate(paths),
        lambda: detector.calibrate(false_alarm_rate=0.1),
        lambda: detector.set_threshold(0.5),
        lambda: detector.measure_false_alarms(paths),
    ):
        with pytest.raises(NotFittedError):
            attempt()


def test_a_failure_changes_nothing(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    before, known = detector.memory, detector.calibration

    def interrupt(stage: str, _done: int, _total: int) -> None:
        if stage == "calibrating":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detector.partial_fit(paths[5:], progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        detector.forget(paths[0], progress=interrupt)
    assert detector.memory is before
    assert detector.calibration is known
    assert detector.history == ()


@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_compressed_memories_grow_and_shrink(fit: Fit, paths: list[Path], tmp_path: Path, compression: str) -> None:
    detector = fit(paths[:4], compression=compression).partial_fit(paths[4:6]).forget(paths[0])
    again = Detector.load(detector.save(tmp_path / "a.procon"), device="cpu")
    assert again.predict(paths[7]).score == detector.predict(paths[7]).score


# ----------------------------------------------------------------------------------------------------------- forget


def test_forgetting_removes_everything_of_an_image(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    detector = fit(paths)
    before = memory_of(detector)
    detector.forget(paths[3])
    after = memory_of(detector)
    rest = [*paths[:3], *paths[4:]]
    assert after.names == tuple(map(str, rest))
    for old, new in zip(origins(before), origins(after), strict=True):
        for long, short in zip(old, new, strict=True):
            assert short == [origin for origin in long if origin[0] != str(paths[3])][: len(short)]
    known = detector.calibration
    assert known is not None
    assert known.scores == pytest.approx(leave_one_out(detector, rest), rel=1e-5)
    detector.save(tmp_path / "a.procon")
    text = (tmp_path / "a.procon").read_bytes()
    assert text.count(b"003.png") == 1  # in the log, and nowhere else
    assert [(change.when, change.what, change.images) for change in detector.history] == [
        ("2025-03-09T14:30:05Z", "forgot", (str(paths[3]),))
    ]


def test_a_copy_of_the_same_content_goes_too(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    twin = tmp_path / "twin.png"
    twin.write_bytes(paths[2].read_bytes())
    detector = fit([*paths[:5], twin]).forget(twin)
    assert memory_of(detector).names == tuple(map(str, [*paths[:2], *paths[3:5]]))
    assert detector.history[-1].images == (str(paths[2]), str(twin))


def test_images_are_known_by_the_end_of_their_path(fit: Fit, tmp_path: Path) -> None:
    one, two = write_parts(tmp_path / "a", range(3)), write_parts(tmp_path / "b", range(2, 5))
    for path in two:
        Image.fromarray(part_pixels(100 + int(path.stem))).save(path)
    detector = fit([*one, *two])
    detector.forget("000.png")
    assert str(one[0]) not in memory_of(detector).names
    with pytest.raises(ImageError, match=r"002\.png: may be any of .*a/002\.png, .*b/002\.png; give more of the path"):
        detector.forget("002.png")
    detector.forget(["a/002.png", Path("004.png")])
    assert memory_of(detector).names == (str(one[1]), str(two[0]), str(two[1]))
    with pytest.raises(ImageError, match=r"absent\.png: is not in the memory, which holds .*001\.png"):
        detector.forget("absent.png")


def test_too_little_left_is_refused(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:2], coreset_ratio=0.1, num_neighbors=5)
    with pytest.raises(
        ConfigError, match=r"without .*001\.png a bank would have \d anchors, and num_neighbors is 5; add"
    ):
        detector.forget(paths[1])
    with pytest.raises(ConfigError, match="a memory must keep at least one image"):
        detector.forget(paths[:2])
    single = fit(paths[:3]).forget(paths[:2])
    assert memory_of(single).names == (str(paths[2]),)
    assert single.calibration is None
    assert single.predict(paths[0]).is_anomalous is None


def test_training_images_that_moved_or_changed(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    model = fit(paths[:5]).save(tmp_path / "a.procon")
    moved = (tmp_path / "good").rename(tmp_path / "elsewhere")
    with pytest.raises(
        ImageError, match=r"4 of 4 images behind the threshold cannot be read again.*000\.png: is no longer"
    ):
        Detector.load(model, device="cpu").forget("004.png")
    found = Detector.load(model, training=moved, device="cpu").forget("004.png").calibration
    assert found is not None and found.kept == 0
    Image.fromarray(part_pixels(60)).save(moved / "001.png")
    changed = Detector.load(model, training=moved, device="cpu")
    with pytest.raises(ImageError, match=r"1 of 4 .*001\.png: is not the image the model was fitted on"):
        changed.forget("004.png")
    changed.forget("004.png", keep_scores=True)
    assert changed.calibration is not None and changed.calibration.kept == 1
    first = Detector.load(model, device="cpu").calibration
    assert first is not None
    assert changed.calibration.scores[1] == first.scores[1]
    assert changed.calibration.scores[0] == found.scores[0]


def test_forgetting_what_was_added_gives_the_old_memory(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    before, known = memory_of(detector), detector.calibration
    detector.partial_fit(paths[5:]).forget(paths[5:])
    after = memory_of(detector)
    assert origins(after) == origins(before)
    assert vectors(after) == vectors(before)
    assert detector.calibration == known


# ------------------------------------------------------------------------------------------------------------- merge


def test_merging_holds_the_images_of_both(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    one, other = fit(paths[:4]), fit(paths[4:])
    other.set_threshold(0.2)
    one.forget(paths[0])
    one.merge(other)
    both = memory_of(one)
    assert both.names == tuple(map(str, paths[1:]))
    assert [change.what for change in one.history] == ["threshold", "forgot", "merged"]
    assert one.history[-1].images == tuple(map(str, paths[4:]))
    known = one.calibration
    assert known is not None and known.fixed is None
    assert known.scores == pytest.approx(leave_one_out(one, paths[1:]), rel=1e-5)
    again = Detector.load(one.save(tmp_path / "both.procon"), device="cpu")
    assert again.history == one.history
    assert again.predict(paths[0]).score == one.predict(paths[0]).score


def test_models_that_do_not_belong_together_are_refused(
    fit: Fit, paths: list[Path], tmp_path: Path, tiny_backbone: Path
) -> None:
    one = fit(paths[:4])
    with pytest.raises(ConfigError, match="same settings, got banks=2 and banks=3; fit one of them again"):
        one.merge(fit(paths[4:], banks=3))
    with pytest.raises(ImageError, match=r"003\.png: is in both models; forget it in one of them first"):
        one.merge(fit(paths[3:]))
    other = write_tiny_backbone(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="same backbone weights"):
        one.merge(Detector(tiny_config(other), device="cpu").fit(paths[4:]))
    with pytest.raises(ImageError, match="image 0: the memory holds another image of this name"):
        fit([part_pixels(0), part_pixels(1)]).merge(fit([part_pixels(2), part_pixels(3)]))
    assert memory_of(one).names == tuple(map(str, paths[:4]))
    assert one.history == ()


def test_merging_without_the_images_keeps_their_scores(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    one, other = fit(paths[:4]), fit(paths[4:])
    models = [one.save(tmp_path / "one.procon"), other.save(tmp_path / "other.procon")]
    for path in paths:
        path.unlink()
    first, second = (Detector.load(model, device="cpu") for model in models)
    with pytest.raises(ImageError, match="4 of 4 images behind the threshold cannot be read again"):
        first.merge(second)
    first.merge(second, keep_scores=True)
    assert first.calibration is not None and one.calibration is not None and other.calibration is not None
    assert first.calibration.scores == one.calibration.scores + other.calibration.scores
    assert first.calibration.kept == 8


# ------------------------------------------------------------------------------------------------------- calibrate


def test_separate_images_calibrate_against_the_whole_memory(fit: Fit, paths: list[Path], tmp_path: Path) -> None:
    detector = fit(paths[:5]).calibrate(paths[5:], false_alarm_rate=0.25, guarantee=True)
    known = detector.calibration
    assert known is not None
    predictions = detector.predict(paths[5:])
    assert known.kind == "held-out"
    assert known.scores == tuple(result.score for result in predictions)
    assert known.medians == tuple(result.median_patch_score for result in predictions)
    assert known.peaks == pytest.approx([float(result.heatmap.max()) for result in predictions], rel=1e-3)
    assert [image.name for image in known.images] == list(map(str, paths[5:]))
    assert known.threshold == max(known.scores)
    assert (
        detector.history[-1].what == "threshold"
        and "held-out on 3 images, guarantee at rate 0.25" in detector.history[-1].note
    )
    again = Detector.load(detector.save(tmp_path / "a.procon"), device="cpu")
    assert again.calibration == known


def test_going_back_to_leave_one_out(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    known = detector.calibration
    detector.calibrate(paths[5:]).calibrate()
    assert detector.calibration == known


def test_another_rate_reads_the_same_scores(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths)
    known = detector.calibration
    detector.calibrate(false_alarm_rate=0.5)
    assert known is not None and detector.calibration == replace(known, false_alarm_rate=0.5)
    assert detector.calibration.threshold < known.threshold
    with pytest.raises(ConfigError, match="false_alarm_rate must be"):
        detector.calibrate(false_alarm_rate=2)
    with pytest.raises(ConfigError, match="false_alarm_rate must be"):
        detector.calibrate(paths, false_alarm_rate=0)


def test_images_of_the_memory_cannot_calibrate_or_measure_it(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    for attempt in (lambda: detector.calibrate(paths[3:]), lambda: detector.measure_false_alarms(paths[3:])):
        with pytest.raises(ImageError, match=r"the model has not seen, got 2 that it has: .*003\.png, .*004\.png"):
            attempt()


def test_images_behind_the_threshold_cannot_measure_it(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5]).calibrate(paths[5:7])
    with pytest.raises(ImageError, match=r"has not seen, got 1 that it has: .*006\.png"):
        detector.measure_false_alarms(paths[6:])


def test_measuring_counts_good_images_above_the_threshold(fit: Fit, paths: list[Path]) -> None:
    detector = fit(paths[:5])
    scores = sorted(result.score for result in detector.predict(paths[5:]))
    found = detector.set_threshold(scores[1]).measure_false_alarms(paths[5:])
    assert (found.flagged, found.images) == (1, 3)


def test_a_model_without_scores_says_what_it_needs(fit: Fit, paths: list[Path]) -> None:
    detector = with_model(fit(paths[0]), calibration=None)
    for attempt, words in (
        (detector.calibrate, "leave-one-out needs more training images"),
        (lambda: detector.calibrate(false_alarm_rate=0.1), "the model is not calibrated; pass good images"),
        (lambda: detector.set_threshold(0.4), "calibrate on good images first"),
        (lambda: detector.measure_false_alarms(paths[1:]), "no threshold to measure"),
    ):
        with pytest.raises(ConfigError, match=words):
            attempt()
    detector.calibrate(paths[1:])
    assert detector.predict(part_pixels(90, defect=True)).is_anomalous


def test_training_pictures_come_from_the_path_or_the_thumbnail(tiny_backbone: Path, paths: list[Path]) -> None:
    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(paths[:2], thumbnails=True)
    whole = detector.sources.picture(memory_of(detector).images[1])
    assert not isinstance(whole, ImageError) and np.array_equal(whole.pixels, part_pixels(1))
    paths[1].unlink()
    small = detector.sources.picture(memory_of(detector).images[1])
    assert not isinstance(small, ImageError) and small.size == (96, 80)
    assert np.abs(small.pixels.astype(int) - part_pixels(1)).mean() < 6  # JPEG
    bare = Detector(tiny_config(tiny_backbone), device="cpu").fit(paths[:1])
    paths[0].unlink()
    assert isinstance(bare.sources.picture(memory_of(bare).images[0]), ImageError)


def test_images_without_a_path_are_never_taken_for_one_another(tiny_backbone: Path) -> None:
    """Training, held-out and added arrays: each is found again as itself."""
    arrays = {first: [part_pixels(seed) for seed in range(first, first + 6)] for first in (0, 100, 200)}
    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(arrays[0])
    before = {suspect.image: suspect.score for suspect in detector.suspects()}
    detector.calibrate(arrays[100])
    assert {suspect.image: suspect.score for suspect in detector.suspects()} == before
    known = detector.calibration
    assert known is not None
    expected = [detector.predict(image).score for image in arrays[100]]
    assert list(known.scores) == pytest.approx(expected)
    detector.partial_fit(arrays[200])
    assert detector.calibration is not None
    assert list(detector.calibration.scores) == pytest.approx([detector.predict(i).score for i in arrays[100]])
    assert len(set(memory_of(detector).names) | {image.name for image in known.images}) == 18
