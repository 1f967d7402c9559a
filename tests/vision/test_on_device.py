"""Resizing as Pillow does it, in whole numbers. The same code runs on a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procon.config import Config
from procon.vision.framing import frame_of, resample, to_input
from procon.vision.images import Picture
from procon.vision.on_device import device_inputs, resample_bytes

SIDES = st.integers(1, 90)


def random_pixels(height: int, width: int, seed: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(pixels > 200, 255, np.where(pixels < 50, 0, pixels)).astype(np.uint8)  # the ends matter most


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_bytes_are_those_of_pillow(shape: tuple[int, int], size: tuple[int, int], seed: int) -> None:
    pixels = random_pixels(*shape, seed)
    resized = resample_bytes(torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0), size)
    assert np.array_equal(resized[0].permute(1, 2, 0).numpy(), resample(pixels, size))


@pytest.mark.parametrize("shape", [(1024, 1024), (672, 672), (230, 640), (3000, 40), (392, 392), (391, 393)])
@pytest.mark.parametrize("size", [(392, 392), (672, 672), (224, 630)])
def test_bytes_of_camera_sizes_are_those_of_pillow(shape: tuple[int, int], size: tuple[int, int]) -> None:
    pixels = random_pixels(*shape, 1)
    resized = resample_bytes(torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0), size)
    assert np.array_equal(resized[0].permute(1, 2, 0).numpy(), resample(pixels, size))


@pytest.mark.parametrize("settings", [{}, {"resize": 448}, {"aspect": "pad"}, {"image_size": (224, 420)}])
def test_inputs_are_those_of_one_image(settings: dict[str, object]) -> None:
    config = Config(**settings)  # type: ignore[arg-type]
    pictures = [Picture(random_pixels(*shape, seed)) for seed, shape in enumerate([(90, 70), (500, 400), (90, 70)])]
    frames = [frame_of(config, picture.size) for picture in pictures]
    cpu = torch.device("cpu")
    inputs = device_inputs([torch.from_numpy(picture.rgb8()) for picture in pictures], frames, config.input_size, cpu)
    for picture, prepared in zip(pictures, inputs, strict=True):
        assert np.array_equal(prepared.numpy(), to_input(picture, config))
