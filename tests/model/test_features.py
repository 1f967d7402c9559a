from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from procon.config import Config
from procon.errors import ImageError
from procon.method.projection import gaussian_matrix
from procon.model.reader import Extractor
from procon.vision.backbone import Backbone
from procon.vision.framing import to_input
from procon.vision.images import Picture, open_image
from tests.conftest import part_pixels, tiny_config

WIDTH = 32  # of the tiny backbone


def extractor(folder: Path, **settings: Any) -> Extractor:
    config = tiny_config(folder, **settings)
    return Extractor(Backbone.load(config, torch.device("cpu")), config)


def shapes(matrices: list[Any]) -> list[tuple[int, ...] | None]:
    return [None if matrix is None else tuple(matrix.shape) for matrix in matrices]


@pytest.mark.parametrize(
    ("settings", "dims", "projections", "selections"),
    [
        # A backbone no wider than the scoring space keeps its own dimensions.
        ({"projection_dim": 512}, [32, 32], [None, None], [None, None]),
        ({"projection_dim": 32}, [32, 32], [None, None], [None, None]),
        ({"projection_dim": 31}, [31, 31], [(32, 31), (32, 31)], [None, None]),
        ({"projection_dim": 16, "selection_dim": 8}, [16, 16], [(32, 16), (32, 16)], [(16, 8), (16, 8)]),
        ({"projection_dim": 16, "selection_dim": 16}, [16, 16], [(32, 16), (32, 16)], [None, None]),
        ({"layer_fusion": "concat", "projection_dim": 512}, [64], [None], [None]),
        ({"layer_fusion": "concat", "projection_dim": 40, "selection_dim": 20}, [40], [(64, 40)], [(40, 20)]),
    ],
)
def test_dimensions(
    tiny_backbone: Path, settings: dict[str, Any], dims: list[int], projections: list[Any], selections: list[Any]
) -> None:
    made = extractor(tiny_backbone, **settings)
    assert made.dims == dims
    assert shapes(made.projections) == projections
    assert shapes(made.selections) == selections
    features = made.embed([torch.randn(25, WIDTH, generator=torch.Generator().manual_seed(layer)) for layer in (0, 1)])
    assert [tuple(memory.shape) for memory in features] == [(25, dim) for dim in dims]


def matrices_by_block(folder: Path, layers: tuple[int, ...], seed: int = 42) -> dict[int, tuple[bytes, bytes]]:
    made = extractor(folder, layers=layers, projection_dim=16, selection_dim=8, seed=seed)
    pairs = zip(made.projections, made.selections, strict=True)
    return {
        block: (projection.numpy().tobytes(), selection.numpy().tobytes())
        for block, (projection, selection) in zip(made.backbone.layers, pairs, strict=True)
        if projection is not None and selection is not None
    }


def test_every_block_has_a_matrix_of_its_own(tiny_backbone: Path) -> None:
    found = matrices_by_block(tiny_backbone, (0, 1, 2, 3))
    assert len({matrix for pair in found.values() for matrix in pair}) == 8
    other = matrices_by_block(tiny_backbone, (0, 1, 2, 3), seed=43)
    assert all(found[block] != other[block] for block in found)


@pytest.mark.parametrize("layers", [(1, 3), (3, 1), (-1, -3), (-3, 3), (0, 1, 2, 3)])
def test_a_matrix_belongs_to_its_block_however_that_is_listed(tiny_backbone: Path, layers: tuple[int, ...]) -> None:
    found, expected = matrices_by_block(tiny_backbone, layers), matrices_by_block(tiny_backbone, (0, 1, 2, 3))
    assert {1, 3} <= set(found)
    assert all(found[block] == expected[block] for block in found)


@pytest.mark.parametrize(("fusion", "blocks", "width"), [("mean", [3, 1], 32), ("concat", [4], 64)])
def test_a_matrix_is_seeded_by_block_and_purpose(
    tiny_backbone: Path, fusion: str, blocks: list[int], width: int
) -> None:
    # The joint memory takes the number of blocks for its own.
    made = extractor(tiny_backbone, layer_fusion=fusion, layers=(-1, -3), projection_dim=16, selection_dim=8)
    for block, projection, selection in zip(blocks, made.projections, made.selections, strict=True):
        assert projection is not None
        assert selection is not None
        assert torch.equal(projection, gaussian_matrix(width, 16, 42, block, 0))
        assert torch.equal(selection, gaussian_matrix(16, 8, 42, block, 1))


def unit(rows: NDArray[Any]) -> NDArray[np.float64]:
    rows = rows.astype(np.float64)
    return np.array([row / np.sqrt((row**2).sum()) for row in rows])


@pytest.mark.parametrize("fusion", ["mean", "concat"])
@pytest.mark.parametrize("projection_dim", [16, 512])
def test_embed_is_the_plain_formula(tiny_backbone: Path, fusion: str, projection_dim: int) -> None:
    made = extractor(tiny_backbone, layer_fusion=fusion, projection_dim=projection_dim)
    tokens = [np.random.default_rng(seed).normal(0, 10, (25, WIDTH)).astype(np.float32) for seed in (0, 1)]
    # Joined layers are normalised one by one first, so that no layer outweighs another.
    inputs = tokens if fusion == "mean" else [np.concatenate([unit(layer) for layer in tokens], axis=1)]
    expected = [
        unit(layer) if matrix is None else unit(layer) @ matrix.numpy().astype(np.float64)
        for layer, matrix in zip(inputs, made.projections, strict=True)
    ]
    for features, reference in zip(made.embed([torch.from_numpy(layer) for layer in tokens]), expected, strict=True):
        assert features.dtype == torch.float32
        np.testing.assert_allclose(features.numpy(), reference, atol=1e-6)


def test_batches_keep_order_and_pass_errors(tiny_backbone: Path) -> None:
    made = extractor(tiny_backbone, resize=84)
    pictures = [open_image(part_pixels(0)), "missing.png", open_image(part_pixels(1))]
    batches = list(made.batches(iter(pictures)))
    assert [len(group) for group, _ in batches] == [1, 1, 1], "one image at a time on a CPU"
    assert [len(pixels) for _, pixels in batches] == [1, 0, 1]
    assert isinstance(error := batches[1][0][0], ImageError)
    assert "missing.png: no such file" in str(error)
    for picture, (group, pixels) in zip(pictures, batches, strict=True):
        if isinstance(picture, Picture):
            assert group == [picture]
            assert np.array_equal(pixels[0].numpy(), to_input(picture, Config(image_size=70, resize=84)))
            expected = made.embed(made.backbone.tokens(pixels))
            assert all(map(torch.equal, made.features(pixels), expected))


def test_the_projection_never_changes() -> None:
    # Model files hold no matrices: these values must come out the same in every release and on every machine.
    expected = [
        [-0.42786986, 0.2404785, -0.69580483, -0.4906147],
        [-0.071789026, 0.48655397, -0.31279692, 0.31732067],
        [-0.11265343, 0.157401, -0.6107215, 0.17681989],
        [0.57398194, 0.13755797, -0.029919075, -0.0024461811],
        [-0.660286, 0.22326143, 0.37781802, 0.63338065],
        [0.4430479, 0.6530727, 0.12969133, -0.06988865],
        [0.1067603, -0.06661884, -0.053498708, -0.3615286],
        [-0.060695544, -0.09162301, 0.79811275, -0.26772082],
    ]
    np.testing.assert_array_equal(gaussian_matrix(8, 4, 42, 3, 0).numpy(), np.array(expected, np.float32))


def test_a_projection_keeps_lengths_on_average() -> None:
    matrix = gaussian_matrix(768, 512, 42, 9, 0).double()
    vectors = torch.nn.functional.normalize(torch.eye(768, dtype=torch.float64), dim=-1)
    assert float((vectors @ matrix).square().sum(dim=1).mean()) == pytest.approx(1, abs=0.01)
