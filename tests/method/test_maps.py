"""From patches to pixels."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from procon.method.maps import gaussian_blur, pixel_map, reflect_index, resize_maps
from tests import reference

TOLERANCE = 1e-5


def make_maps(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5, 4.0])
@pytest.mark.parametrize("shape", [(40, 31), (5, 5), (1, 7), (3, 50)])  # also maps smaller than the kernel
def test_blur_equals_scipy_and_the_reference(sigma: float, shape: tuple[int, int]) -> None:
    pixels = make_maps(1, 1, *shape)
    found = gaussian_blur(pixels, sigma)[0].numpy()
    image = pixels[0].double().numpy()
    np.testing.assert_allclose(
        found, ndimage.gaussian_filter(image, sigma, mode="reflect", truncate=4.0), rtol=TOLERANCE
    )
    np.testing.assert_allclose(found, reference.gaussian_blur(image, sigma), rtol=TOLERANCE)


def test_no_blur_is_the_map_itself() -> None:
    pixels = make_maps(2, 2, 6, 6)
    assert torch.equal(gaussian_blur(pixels, 0), pixels)


def test_blur_leaves_its_input_alone() -> None:
    pixels = make_maps(3, 1, 8, 8)
    before = pixels.clone()
    gaussian_blur(pixels, 2.0)
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("sigma", [0.5, 4.0, 30.0])
def test_blur_keeps_a_constant_and_the_mean(sigma: float) -> None:
    torch.testing.assert_close(gaussian_blur(torch.full((1, 9, 12), 0.7), sigma), torch.full((1, 9, 12), 0.7))
    # Reflected edges lose nothing: what leaves the map comes back into it.
    pixels = make_maps(4, 1, 30, 20)
    torch.testing.assert_close(gaussian_blur(pixels, sigma).mean(), pixels.mean())


@pytest.mark.parametrize(("size", "radius"), [(4, 2), (4, 4), (3, 11), (1, 5)])
def test_edges_are_reflected_for_any_radius(size: int, radius: int) -> None:
    expected = np.pad(np.arange(size), radius, mode="symmetric")
    assert reflect_index(size, radius, torch.device("cpu")).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [(70, 70), (13, 29), (5, 12), (3, 2)])
def test_resize_equals_the_reference(size: tuple[int, int]) -> None:
    scores = make_maps(5, 1, 5, 7)
    expected = reference.bilinear(scores[0].double().numpy(), *size)
    np.testing.assert_allclose(resize_maps(scores, size)[0].numpy(), expected, rtol=TOLERANCE)


def test_resize_to_the_same_size_is_the_map_itself() -> None:
    scores = make_maps(6, 2, 5, 7)
    assert torch.equal(resize_maps(scores, (5, 7)), scores)


def test_pixel_map_resizes_then_blurs() -> None:
    scores = make_maps(7, 1, 4, 6)
    expected = reference.gaussian_blur(reference.bilinear(scores[0].double().numpy(), 28, 42), 3.0)
    np.testing.assert_allclose(pixel_map(scores, (28, 42), 3.0)[0].numpy(), expected, rtol=TOLERANCE)


@pytest.mark.parametrize("shape", [(5, 5), (28, 28), (3, 7)])
def test_a_map_is_the_same_bits_alone_and_in_any_batch(shape: tuple[int, int]) -> None:
    scores = make_maps(8, 7, *shape)
    whole = pixel_map(scores, (61, 43), 2.0)
    alone = torch.cat([pixel_map(single, (61, 43), 2.0) for single in scores.split(1)])
    assert torch.equal(alone, whole)
    assert torch.equal(pixel_map(scores.flip(0), (61, 43), 2.0), whole.flip(0))
