"""Overlapping tiles: every cell is covered, no seam shows, memory is bounded, the cut leaves no trace in the result."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from procon import Config, Detector
from procon.method import tiling
from procon.method.tiling import tile_starts, tile_weights, tiled_tokens
from tests import reference
from tests.conftest import tiny_config


@given(st.integers(4, 40), st.integers(0, 200))
def test_tiles_cover_and_overlap_by_a_quarter(tile: int, more: int) -> None:
    length = tile + more
    starts = tile_starts(length, tile)
    assert starts[0] == 0 and starts[-1] == length - tile
    assert (more == 0) == (len(starts) == 1)
    steps = np.diff(starts)
    assert (steps >= 1).all() and (steps <= tile - max(1, tile // 4)).all()
    weights = tile_weights(starts, tile, length).numpy()
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    for start, row in zip(starts, weights, strict=True):
        assert (row[start : start + tile] > 0).all() and row.sum() == pytest.approx(row[start : start + tile].sum())


def cell_tokens(windows: Tensor) -> list[Tensor]:
    """A stand-in for the backbone with patches of 2 pixels: the mean of a cell, and how far it is from the edge."""
    cells = windows.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(4, 5))  # [n, 3, t, t]
    side = torch.arange(cells.shape[2])
    edge = torch.minimum(side, side.flip(0)).float()
    near = torch.minimum(edge.unsqueeze(1), edge).expand(len(cells), 1, -1, -1)
    return [torch.cat([cells, near], dim=1).flatten(2).transpose(1, 2), cells.flatten(2).transpose(1, 2) * 2]


@pytest.mark.parametrize("together", [1, 3, 100])
def test_the_blend_equals_the_reference_however_it_is_cut(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "TOGETHER", together)
    pixels = torch.randn(2, 3, 2 * 13, 2 * 9, generator=torch.Generator().manual_seed(0))
    first, second = tiled_tokens(pixels, 2, 6, cell_tokens)
    assert first.shape == (2, 13 * 9, 4) and second.shape == (2, 13 * 9, 3)
    for number in range(2):
        tiles = {}
        for top in tile_starts(13, 6):
            for left in tile_starts(9, 6):
                window = pixels[number : number + 1, :, 2 * top : 2 * (top + 6), 2 * left : 2 * (left + 6)]
                tiles[top, left] = cell_tokens(window)[0][0].view(6, 6, 4).double().numpy()
        expected = reference.blended_tiles(tiles, 6, (13, 9))
        np.testing.assert_allclose(first[number].view(13, 9, 4).numpy(), expected, atol=1e-5)
    # Where all tiles say the same of a cell, so does the blend.
    cells = pixels.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(4, 5)).flatten(2).transpose(1, 2)
    np.testing.assert_allclose(second.numpy(), 2 * cells.numpy(), atol=1e-5)


def test_no_seam_shows_where_tiles_end() -> None:
    """Tokens that differ wildly near the edge of a view: side by side they would jump by half a tile, blended by 2."""
    pixels = torch.zeros(1, 3, 2 * 60, 2 * 60)
    first, _ = tiled_tokens(pixels, 2, 16, cell_tokens)
    depth = first[0, :, 3].view(60, 60)
    inside = depth[4:-4, 4:-4]
    assert inside.diff(dim=0).abs().max() < 2 and inside.diff(dim=1).abs().max() < 2
    assert inside.min() > 1  # and nowhere does the very edge of a tile speak alone


def textured(seed: int, side: int = 196) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    waves = 30 * np.sin(x / 5 + random.uniform(0, 6)) + 30 * np.sin(y / 7 + random.uniform(0, 6))
    return np.asarray((128 + waves[:, :, None] + random.normal(0, 4, (side, side, 3))).clip(0, 255), np.uint8)


@pytest.fixture(scope="module")
def tiled(tiny_backbone: Path) -> Detector:
    config = tiny_config(tiny_backbone, image_size=196, tile=70, coreset_ratio=0.2, blur_sigma=0)
    return Detector(config, device="cpu").fit([textured(seed) for seed in range(6)])


def test_a_tile_as_large_as_the_image_changes_nothing(tiny_backbone: Path) -> None:
    images = [textured(seed, 84) for seed in range(4)]
    plain = Detector(tiny_config(tiny_backbone, image_size=84), device="cpu").fit(images)
    whole = Detector(tiny_config(tiny_backbone, image_size=84, tile=84), device="cpu").fit(images)
    assert plain.predict(images[0]).score == pytest.approx(whole.predict(images[0]).score, rel=1e-5)


def test_good_parts_show_no_grid_and_a_defect_scores_alike_on_a_seam_and_off_it(tiled: Detector) -> None:
    starts = tile_starts(14, 5)
    borders = sorted({edge for start in starts for edge in (start, start + 5)} - {0, 14})
    steps = np.zeros(13)
    for seed in range(20, 28):
        cells = np.asarray(tiled.predict(textured(seed)).heatmap)[7::14, 7::14]
        steps += np.abs(np.diff(cells, axis=0)).mean(axis=1) + np.abs(np.diff(cells, axis=1)).mean(axis=0)
    at_borders = np.isin(np.arange(1, 14), borders)
    assert steps[at_borders].mean() < 1.5 * steps[~at_borders].mean()

    found = {}
    for cell in (starts[1] + 2, starts[1] + 4, starts[2], 6, 7, 8):  # middles of tiles and their edges
        image = textured(30)
        image[14 * cell : 14 * cell + 10, 14 * cell : 14 * cell + 10] = (250, 20, 20)
        result = tiled.predict(image)
        y, x = np.unravel_index(result.heatmap.argmax(), result.heatmap.shape)
        assert abs(int(y) // 14 - cell) <= 1 and abs(int(x) // 14 - cell) <= 1
        found[cell] = result.score
    assert max(found.values()) < 1.5 * min(found.values())
    assert min(found.values()) > tiled.predict(textured(30)).score


def test_tiles_are_scored_alike_alone_and_in_a_batch_and_after_loading(tiled: Detector, tmp_path: Path) -> None:
    images = [textured(seed) for seed in (40, 41, 42)]
    together = tiled.predict(images)
    again = Detector.load(tiled.save(tmp_path / "part.procon"))
    assert again.config.tile == 70
    for image, result in zip(images, together, strict=True):
        assert tiled.predict(image).score == result.score == again.predict(image).score
    assert tiled.explain(images[0], xy=(100, 100)).layers[0].anchors


def test_the_backbone_never_sees_more_than_a_few_tiles_at_once(
    tiled: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    real = tiled.reader.extractor.backbone.tokens

    def watch(pixels: Tensor) -> list[Tensor]:
        seen.append(tuple(pixels.shape))
        return real(pixels)

    monkeypatch.setattr(tiled.reader.extractor.backbone, "tokens", watch)
    tiled.predict(textured(50))
    groups = [shape for shape in seen if shape[0] > 1]  # on a CPU each is then taken apart
    assert sum(shape[0] for shape in groups) == len(tile_starts(14, 5)) ** 2
    assert max(shape[0] for shape in seen) <= tiling.TOGETHER and {shape[1:] for shape in seen} == {(3, 70, 70)}


def test_the_grid_is_that_of_the_whole_image() -> None:
    config = Config(image_size=(784, 1176), tile=392)
    assert config.grid == (56, 84) and config.view == (28, 28) and config.input_size == (784, 1176)
