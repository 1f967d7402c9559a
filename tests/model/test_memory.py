"""Banks, their provenance, and the features they are selected from."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from procon.method.coreset import k_center, to_grid
from procon.method.projection import gaussian_matrix
from procon.model.memory import LayerMemory, Memory
from procon.model.selection import FeatureStore, build_layer, coreset_size, select_anchors
from procon.model.training_image import TrainingImage

CPU = torch.device("cpu")


def make_features(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary files appear."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# -------------------------------------------------------------------------------------------------- feature store


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_store_returns_what_was_put(limit: int, temporary: Path) -> None:
    images = [[make_features(index, 6, 8), make_features(index + 50, 6, 4)] for index in range(3)]
    with FeatureStore(3, 6, [8, 4], limit) as store:
        assert store.on_disk == (limit == 0) == any(temporary.iterdir())
        for index in (2, 0, 1):
            store.put(index, [layer.unsqueeze(0) for layer in images[index]])
        assert len(store) == 2
        for layer in range(2):
            together = torch.cat([image[layer] for image in images])
            stored = together.half() if limit == 0 else together
            pieces = list(store.pieces(layer, size=5))
            assert [(rows.start, rows.stop) for rows, _ in pieces] == [(0, 5), (5, 10), (10, 15), (15, 18)]
            assert torch.equal(torch.cat([features for _, features in pieces]), stored.float())
            for index in range(3):
                found = store.image(index)[layer][0]
                assert found.dtype == torch.float32
                assert torch.equal(found, stored[index * 6 : index * 6 + 6].float())
                torch.testing.assert_close(found, images[index][layer], rtol=2**-11, atol=1e-7)  # fp16
    assert not any(temporary.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_files_of_a_store_vanish_on_failure(error: type[BaseException], temporary: Path) -> None:
    with pytest.raises(error), FeatureStore(2, 3, [4], 0) as store:
        store.put(0, [torch.ones(1, 3, 4)])
        assert any(temporary.iterdir())
        raise error
    assert not any(temporary.iterdir())


def test_a_store_goes_to_disk_above_its_limit_only(temporary: Path) -> None:
    exactly = 4 * 2 * 3 * (4 + 5)  # bytes of fp32
    with FeatureStore(2, 3, [4, 5], exactly) as store:
        assert not store.on_disk
    with FeatureStore(2, 3, [4, 5], exactly - 1) as store:
        assert store.on_disk


def test_a_missing_layer_is_refused(temporary: Path) -> None:
    with FeatureStore(1, 3, [4, 5]) as store, pytest.raises(ValueError, match="longer"):
        store.put(0, [torch.ones(1, 3, 4)])


# ------------------------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize(
    ("patches", "ratio", "neighbors", "cap", "size"),
    [
        (1000, 0.05, 5, None, 50),
        (999, 0.05, 5, None, 49),  # floor
        (784 * 209, 0.05, 5, None, 8192),
        (60, 0.05, 5, None, 5),  # never below k
        (1000, 0.05, 5, 20, 20),
        (1000, 0.05, 5, 80, 50),
        (3, 0.05, 5, None, 3),  # never above what there is
        (3, 0.05, 5, 4, 3),
        (25, 1.0, 5, None, 25),
    ],
)
def test_coreset_size(patches: int, ratio: float, neighbors: int, cap: int | None, size: int) -> None:
    assert coreset_size(patches, ratio, neighbors, cap) == size


def filled(features: Tensor, limit: int = 2**30) -> FeatureStore:
    """A store of one layer with ``features`` [N, D] as N images of one patch."""
    store = FeatureStore(len(features), 1, [features.shape[1]], limit)
    store.put(0, [features.unsqueeze(1)])
    return store


@pytest.mark.parametrize("limit", [0, 2**30], ids=["on disk", "in memory"])
def test_banks_are_coresets_of_the_features(limit: int) -> None:
    features = make_features(1, 120, 16).half().float()  # exact in fp16, so that disk and memory hold the same
    selection = gaussian_matrix(16, 5, 42, 0, 1)
    with filled(features, limit) as store:
        layer = build_layer(store, 0, selection, 30, (1, 2, 3), CPU)
    assert layer.banks.shape == (3, 30)
    assert layer.anchors.dtype == torch.float32
    assert torch.equal(layer.anchors, features[layer.origin])
    assert torch.equal(layer.origin, layer.origin.unique())  # ascending, each once
    starts = [int(np.random.RandomState(bank).random_sample() * 120) for bank in (1, 2, 3)]
    assert layer.origin[layer.banks[:, 0]].tolist() == starts
    # Distances are those of the narrow space, and only of it.
    assert torch.equal(layer.origin[layer.banks], k_center(features @ selection, 30, starts))
    assert not torch.equal(layer.origin[layer.banks], k_center(features, 30, starts))
    for bank in range(3):
        assert torch.equal(layer.bank(bank), features[layer.origin[layer.banks[bank]]])


def test_without_a_narrow_space_distances_are_full() -> None:
    features = make_features(2, 90, 6)
    layer = build_layer(filled(features), 0, None, 20, (1,), CPU)
    start = int(np.random.RandomState(1).random_sample() * 90)
    assert torch.equal(layer.origin[layer.banks], k_center(features, 20, [start]))


def test_selecting_leaves_the_features_as_they_were() -> None:
    """The grid is made in place; without a narrow space that must not be the store's own memory."""
    features = make_features(2, 90, 6)
    store = filled(features)
    build_layer(store, 0, None, 20, (1,), CPU)
    assert torch.equal(store._read_rows(0, slice(0, 90)), features)


def test_a_whole_layer_in_every_bank_is_stored_once() -> None:
    layer = build_layer(filled(make_features(3, 12, 4)), 0, None, 12, (1, 2, 3), CPU)
    assert layer.origin.tolist() == list(range(12))


# --------------------------------------------------------------------------------------------------------- memory


def make_images(*names: str) -> tuple[TrainingImage, ...]:
    return tuple(TrainingImage(name, (8, 8), f"file:{name}") for name in names)


def make_memory() -> Memory:
    layers = (
        LayerMemory(make_features(4, 5, 3), torch.tensor([0, 3, 4, 8, 11]), torch.tensor([[0, 1, 2], [4, 3, 2]])),
        LayerMemory(make_features(5, 4, 3), torch.tensor([1, 2, 5, 9]), torch.tensor([[0, 1, 3], [1, 0, 2]])),
    )
    return Memory(layers, make_images("a.png", "b.png", "c.png"), patches=4)


def test_own_anchors_of_an_image() -> None:
    memory = make_memory()
    assert [memory.own([image])[0].tolist() for image in range(3)] == [
        [True, True, False, False, False],  # patches 0 and 3 of image 0
        [False, False, True, False, False],
        [False, False, False, True, True],
    ]
    assert memory.own([0])[1].tolist() == [True, True, False, False]
    assert memory.own({0, 2})[1].tolist() == [True, True, False, True]


def test_the_smallest_bank_without_an_image() -> None:
    assert [make_memory().fewest_without(image) for image in range(3)] == [1, 2, 1]


def test_tensors_round_trip() -> None:
    memory = make_memory()
    again = Memory.from_tensors(memory.to_tensors(), memory.images, memory.patches)
    assert again.images == memory.images
    for one, other in zip(memory.layers, again.layers, strict=True):
        assert torch.equal(one.anchors, other.anchors)
        assert torch.equal(one.origin, other.origin)
        assert torch.equal(one.banks, other.banks)
        assert other.banks.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("memory.1.anchors", torch.ones(4), "shapes that do not match"),
        ("memory.1.anchors", torch.ones(3, 3), "shapes that do not match"),
        ("memory.1.banks", torch.zeros(3, dtype=torch.int32), "shapes that do not match"),
        ("memory.1.banks", torch.zeros(0, 3, dtype=torch.int32), "shapes that do not match"),
        ("memory.1.banks", torch.full((2, 3), 4, dtype=torch.int32), "shapes that do not match"),
        ("memory.1.banks", torch.full((2, 3), -1, dtype=torch.int32), "shapes that do not match"),
        ("memory.1.origin", torch.tensor([1, 2, 5]), "shapes that do not match"),
        ("memory.1.origin", torch.tensor([1, 2, 5, 12]), "shapes that do not match"),  # 3 images of 4 patches
        ("memory.1.origin", torch.tensor([-1, 2, 5, 9]), "shapes that do not match"),
        ("memory.1.anchors", torch.full((4, 3), torch.nan), "NaN or infinite"),
        ("memory.1.anchors", torch.full((4, 3), torch.inf), "NaN or infinite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, value: Tensor, complaint: str) -> None:
    memory = make_memory()
    with pytest.raises(ValueError, match=f"memory 1 .*{complaint}"):
        Memory.from_tensors({**memory.to_tensors(), name: value}, memory.images, memory.patches)


def test_a_file_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="no memory"):
        Memory.from_tensors({"backbone.weight": torch.ones(2)}, make_images("a.png"), 4)


@pytest.mark.parametrize("coreset", ["k-center", "random"])
def test_a_smaller_bank_is_the_beginning_of_a_larger_one(coreset: str) -> None:
    grid = to_grid(make_features(4, 100, 6))
    assert torch.equal(
        select_anchors(grid, 40, (3, 4), coreset)[:, :15],
        select_anchors(grid, 15, (3, 4), coreset),
    )


def test_random_banks_are_patches_drawn_once_each_with_the_seed_of_the_bank() -> None:
    picks = select_anchors(to_grid(make_features(4, 100, 6)), 30, (3, 4), "random")
    assert all(len(set(bank.tolist())) == 30 for bank in picks)
    assert not torch.equal(picks[0], picks[1])
    assert torch.equal(picks[1], select_anchors(to_grid(make_features(5, 100, 6)), 30, (4,), "random")[0])
