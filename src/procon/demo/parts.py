"""Procedural photographs of a machined flange, good or with one of three defects, with exact masks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from procon.arrays import Bools, Bytes
from procon.demo.defects import DEFECT_KINDS, PART_KINDS, make_defect
from procon.demo.scene import (
    SUPERSAMPLE,
    Field,
    Scene,
    blur,
    edge_distance,
    key_light_share,
    look_into_bores,
    machined_height,
    make_noise,
    metal_light,
    place_holes,
    tooling_marks,
    tray_light,
)
from procon.files import atomic_path
from procon.progress import Progress, no_progress

MIN_SIZE = 64  # pixels; below it the drilled holes are no longer resolved
COOL = (0.88, 0.96, 1.06)  # RGB of the fill lamp and the room
RUST_DARK, RUST_LIGHT = (0.105, 0.036, 0.014), (0.30, 0.115, 0.036)  # linear RGB
TARNISH = (0.66, 0.46, 0.30)  # what a thin film of rust leaves of the metal's light, RGB


@dataclass(frozen=True)
class Part:
    """One picture: ``image`` [H, W, 3] in sRGB, ``mask`` [H, W] True on the defect."""

    image: Bytes
    mask: Bools


def _compose(kind: str, seed: int, size: int) -> tuple[list[Field], Bools]:
    """Linear light of the three channels, and the samples ``[N,N]`` that the defect touches."""
    # The scene never draws from the defect's generator: all kinds of one seed share their scene.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    scene = Scene(rng, size * SUPERSAMPLE)
    outline, holes = edge_distance(scene.u, scene.v), place_holes(scene.u, scene.v)
    height, tray = machined_height(scene, outline, holes), tray_light(rng, scene.n)
    finish = tooling_marks(rng, scene, holes)
    mottle = 1 + 0.02 * make_noise(rng, scene.n, 5, 3)
    opening, inside = look_into_bores(scene, holes, tray)
    solid = np.clip(0.5 - outline / scene.pixel, 0, 1) * (1 - opening)
    defect, touched = make_defect(kind, seed, scene, solid)
    left = solid * (1 - defect.cut)
    # A chip would also move the shadow beside the part, by less than the dark tray shows: left out,
    # so that nothing changes outside the mask.
    reached = key_light_share(scene, height, solid)
    if defect.cut.any():
        reached = np.where(touched, key_light_share(scene, height, left), reached)
    key, rest = metal_light(scene, height + defect.relief, finish, defect.wear)
    key, rest = key * reached * left * mottle, rest * left * mottle
    behind = (1 - left) * (tray * reached * (1 - opening) + inside * opening)
    rust, film = defect.rust, np.minimum(2.5 * defect.rust, 1)
    matte = (0.35 * left + 0.8 * key + 0.5 * rest) * rust
    channels = []
    for c in range(3):
        bare = (key * scene.warm[c] + rest * COOL[c]) * (1 - film * (1 - TARNISH[c])) * (1 - rust)
        oxide = RUST_DARK[c] + (RUST_LIGHT[c] - RUST_DARK[c]) * defect.tone
        channels.append(bare + matte * oxide + behind * COOL[c])
    return channels, touched


def _develop(channels: list[Field], seed: int, size: int) -> Bytes:
    """Lens, sensor and tone curve: linear light to sRGB bytes ``[size,size,3]``."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, 1)))
    sigma = rng.uniform(0.40, 0.60) * size / 448
    axis = np.linspace(-1, 1, size, dtype=np.float32) ** 2
    vignette = 1 - 0.11 * (axis[:, None] + axis[None, :])
    image = np.empty((size, size, 3), np.uint8)
    for c, channel in enumerate(channels):
        light = channel.reshape(size, SUPERSAMPLE, size, SUPERSAMPLE).mean((1, 3)) * vignette
        light = blur(np.minimum(light, 1.6), sigma)
        grain = rng.standard_normal((size, size), dtype=np.float32)
        light = np.maximum(light + grain * (0.0012 + 0.0066 * np.sqrt(light)), 0)
        toned = 1.25 * light * (1 + 0.28 * light) / (1 + light)
        image[..., c] = np.rint(255 * np.minimum(toned, 1) ** (1 / 2.2))
    return image


def _check(**counts: tuple[object, int]) -> None:
    """Raise ValueError unless each named value is an integer no smaller than its least."""
    for name, (value, least) in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def render_part(kind: str, seed: int, size: int = 448) -> Part:
    """Photograph one part, ``size`` pixels square; the same arguments give the same bytes.

    All kinds of one seed show the same part in the same light: outside its mask, a defective part equals its good twin
    to within 2 grey levels.
    """
    if kind not in PART_KINDS:
        raise ValueError(f"kind must be one of {', '.join(PART_KINDS)}, got {kind!r}")
    _check(seed=(seed, 0), size=(size, MIN_SIZE))
    channels, touched = _compose(kind, seed, size)
    seen = np.any(touched.reshape(size, SUPERSAMPLE, size, SUPERSAMPLE), axis=(1, 3))
    # One pixel more, because the lens spreads the defect's border that far.
    mask = np.asarray(ndimage.binary_dilation(np.asarray(seen)), np.bool_)
    return Part(_develop(channels, seed, size), mask)


def plan_set(train: int, good: int, defects_per_kind: int, seed: int = 0) -> list[tuple[str, str, str, int]]:
    """(split, kind, name, seed) of every part of a set: training parts, good test parts, then each defect kind.

    A part depends only on ``seed``, its group and its place there, so a larger set extends a smaller one. Names count
    up from "000" within each group.
    """
    _check(train=(train, 0), good=(good, 0), defects_per_kind=(defects_per_kind, 0), seed=(seed, 0))
    groups = [("train", "good", train), ("test", "good", good)]
    groups += [("test", kind, defects_per_kind) for kind in DEFECT_KINDS]
    plan = []
    for number, (split, kind, count) in enumerate(groups):
        for index in range(count):
            key = np.random.SeedSequence(seed, spawn_key=(number, index))
            plan.append((split, kind, f"{index:03d}", int(key.generate_state(1, np.uint64)[0])))
    return plan


def write_set(
    folder: Path,
    *,
    train: int,
    good: int,
    defects_per_kind: int,
    seed: int = 0,
    size: int = 448,
    on_progress: Progress = no_progress,
) -> None:
    """Write the parts of :func:`plan_set` as an MVTec tree under ``folder``, replacing files of the same names.

    ``train/good/000.png``, ``test/<kind>/000.png``, and for each defect
    ``ground_truth/<kind>/000_mask.png`` (uint8, 0 or 255). Other files there are left alone.
    """
    plan = plan_set(train, good, defects_per_kind, seed)
    for done, (split, kind, name, part_seed) in enumerate(plan, start=1):
        part = render_part(kind, part_seed, size)
        pictures = {folder / split / kind / f"{name}.png": Image.fromarray(part.image)}
        if kind != "good":
            pictures[folder / "ground_truth" / kind / f"{name}_mask.png"] = Image.fromarray(part.mask).convert("L")
        for path, picture in pictures.items():
            with atomic_path(path) as temporary:
                picture.save(temporary, format="PNG")
        on_progress("rendering parts", done, len(plan))
