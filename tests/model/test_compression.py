"""A smaller or faster memory: what is stored, that it survives saving bit for bit, and how far scores move."""

import sys
from pathlib import Path

import pytest
import torch

from procon import Detector, MissingExtraError
from procon.method.neighbors import Banks, nearest_in_banks
from procon.model.memory import inverted_file, pack_anchors, unpack_anchors
from procon.model.storage import read_model
from tests.conftest import part_pixels, tiny_config


def unit_vectors(count: int, dims: int) -> torch.Tensor:
    points = torch.randn(count, dims, generator=torch.Generator().manual_seed(count))
    return torch.nn.functional.normalize(points, dim=1)


@pytest.mark.parametrize(("compression", "size", "error"), [("none", 4, 0.0), ("fp16", 2, 2**-11), ("int8", 1, 2**-7)])
def test_anchors_take_the_bytes_they_should_and_come_back(compression: str, size: int, error: float) -> None:
    anchors = unit_vectors(200, 48)
    stored = pack_anchors(anchors, compression)
    assert stored["anchors"].element_size() == size
    again = unpack_anchors(stored)
    assert (again - anchors).abs().max() <= error * anchors.abs().max()
    # What was rounded once is not rounded again: a saved model scores as it did before.
    assert torch.equal(unpack_anchors(pack_anchors(again, compression)), again)


def test_a_zero_anchor_survives_int8() -> None:
    assert not unpack_anchors(pack_anchors(torch.zeros(1, 8), "int8")).any()


@pytest.mark.parametrize("compression", ["fp16", "int8", "approximate"])
def test_a_compressed_detector_scores_alike_before_and_after_saving(
    compression: str, detector: Detector, tiny_backbone: Path, good_folder: Path, tmp_path: Path
) -> None:
    if compression == "approximate":
        pytest.importorskip("faiss")
    small = Detector(tiny_config(tiny_backbone, compression=compression), device="cpu").fit(good_folder)
    images = [part_pixels(70), part_pixels(71, defect=True)]
    scores = [result.score for result in small.predict(images)]
    assert scores == pytest.approx([result.score for result in detector.predict(images)], rel=0.05)
    assert (scores == [result.score for result in detector.predict(images)]) == (compression == "approximate")
    loaded = Detector.load(small.save(tmp_path / "small.procon"), device="cpu")
    assert [result.score for result in loaded.predict(images)] == scores
    tensors, metadata = read_model(tmp_path / "small.procon")
    assert metadata["config"]["compression"] == compression
    kept = {"fp16": torch.float16, "int8": torch.int8, "approximate": torch.float32}
    assert tensors["memory.0.anchors"].dtype == kept[compression]


def test_the_approximate_search_finds_nearly_all_neighbours_and_always_k() -> None:
    pytest.importorskip("faiss")
    anchors, queries = unit_vectors(6000, 24), unit_vectors(400, 24)
    rows = torch.stack([torch.randperm(6000, generator=torch.Generator().manual_seed(b))[:3000] for b in range(3)])
    approximate = nearest_in_banks(queries, Banks(anchors, rows, inverted_file(anchors)), 5)
    distances, indices = nearest_in_banks(queries, Banks(anchors, rows), 5)
    assert approximate[0].isfinite().all()
    assert (approximate[0] >= distances).all(), "an approximate neighbour cannot be nearer than the true one"
    found = (approximate[1].unsqueeze(3) == indices.unsqueeze(2)).any(dim=3).float().mean()
    assert 0.6 < found < 1, f"recall {found:.3f} of 24-dimensional noise, the hardest case there is"


def test_too_few_proposals_fall_back_on_the_exact_search() -> None:
    anchors, queries = unit_vectors(300, 8), unit_vectors(50, 8)
    rows = torch.arange(300).view(3, 100)

    def blind(queries: torch.Tensor, count: int) -> torch.Tensor:
        return torch.full((len(queries), count), -1)

    expected = nearest_in_banks(queries, Banks(anchors, rows), 5)
    found = nearest_in_banks(queries, Banks(anchors, rows, blind), 5)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_the_missing_library_is_named_with_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[approximate\]'"):
        inverted_file(unit_vectors(100, 8))
