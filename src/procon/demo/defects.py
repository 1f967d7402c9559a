"""The three defects of rendered parts: what each changes in the relief, the finish and the color of the surface."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from procon.demo.scene import BOLT, BOSS, Field, Scene, blur, edge_distance, make_noise, smooth_step

DEFECT_KINDS = ("scratch", "chipped_edge", "rust")
PART_KINDS = ("good", *DEFECT_KINDS)


@dataclass(frozen=True)
class Defect:
    """What a defect changes; all zero on a good part."""

    relief: Field  # added to the height
    wear: Field  # 0 keeps the machined finish, 1 is bare rough metal
    rust: Field  # opacity
    tone: Field  # of that rust: 0 dark, 1 light
    cut: Field  # 1 where the material is gone down to the tray


def _spot(rng: np.random.Generator) -> tuple[Field, Field]:
    """A place on the brushed face, clear of the boss, the bolt holes and the edge."""
    u, v = rng.uniform(-0.66, 0.66, (2, 256)).astype(np.float32)
    clear = (edge_distance(u, v) < -0.07) & (np.hypot(u, v) > BOSS + 0.04)
    clear &= np.hypot(np.abs(u) - BOLT, np.abs(v) - BOLT) > 0.15
    first = int(np.argmax(clear))  # a quarter of the draws are clear
    return u[first], v[first]


def _scratch(rng: np.random.Generator, scene: Scene, defect: Defect) -> None:
    """One to three strands of one slip: a groove, a burr on one side, bare metal."""
    u, v = _spot(rng)
    heading = rng.uniform(0.35, 2.8)  # never quite along the brushing, which would hide it
    length, bend = rng.uniform(0.22, 0.35), rng.uniform(-0.9, 0.9)
    c, s = np.float32(np.cos(heading)), np.float32(np.sin(heading))
    along = (scene.u - u) * c + (scene.v - v) * s
    side = (scene.v - v) * c - (scene.u - u) * s
    wobble = 0.012 * blur(rng.standard_normal(512, dtype=np.float32), 12)
    chatter = 0.85 + 0.5 * blur(rng.standard_normal(512, dtype=np.float32), 3)
    index = np.clip((along * 512 + 256).astype(np.int32), 0, 511)
    for strand in range(int(rng.integers(1, 4))):
        offset = (0, 1, -1)[strand] * rng.uniform(0.009, 0.016)
        start, end = np.array([-0.5, 0.5]) * length * rng.uniform(0.7, 1, 2)
        press = smooth_step(along, start, start + 0.03) * smooth_step(along, end, end - 0.15)
        press *= chatter[index] * (1 if strand == 0 else 0.5)
        off = (side - bend * along * along - wobble[index] - offset) / (0.0024 + 0.0026 * press)
        groove, burr = press * np.exp(-off * off), press * np.exp(-((off - 1.9) ** 2))
        defect.relief[:] += 0.0060 * (0.5 * burr - groove)
        np.maximum(defect.wear, np.clip(0.9 * groove + 0.3 * burr, 0, 1), out=defect.wear)


def _chip(rng: np.random.Generator, scene: Scene, defect: Defect) -> None:
    """A bite out of the edge: material gone at the rim, a broken slope of facets behind it."""
    heading = rng.uniform(0, 2 * np.pi)
    c, s = np.float32(np.cos(heading)), np.float32(np.sin(heading))
    ray = np.linspace(0.4, 1.1, 700, dtype=np.float32)
    rim = ray[np.argmax(edge_distance(ray * c, ray * s) > 0)]
    size, stretch = rng.uniform(0.075, 0.125), np.float32(rng.uniform(1.0, 1.7))
    out, side = scene.u * c + scene.v * s - rim, scene.v * c - scene.u * s
    reach = np.hypot(out, side / stretch) - 0.012 * make_noise(rng, scene.n, 16, 4)
    slope = np.clip(1 - reach / size, 0, 1)
    broken = smooth_step(slope, 0, 0.12)
    facets = np.abs(make_noise(rng, scene.n, 45, 3))
    defect.cut[:] = np.clip(0.5 + (0.6 * size - reach) / scene.pixel, 0, 1)
    defect.relief[:] = -0.11 * slope * slope - 0.0021 * broken * facets
    defect.wear[:] = broken


def _rust(rng: np.random.Generator, scene: Scene, defect: Defect) -> None:
    """A bloom of corrosion with satellites: colour, no more gloss, a pitted surface."""
    u, v = _spot(rng)
    size, squash = rng.uniform(0.045, 0.085), np.float32(rng.uniform(0.8, 1.5))
    cloud, speck = make_noise(rng, scene.n, 26, 4), make_noise(rng, scene.n, 90, 2)
    distance = np.hypot(scene.u - u, (scene.v - v) * squash) / np.float32(size)
    body = smooth_step(1.15 - distance + 0.24 * cloud, -0.25, 0.85)
    spots = 0.8 * smooth_step(0.5 * speck - 0.35 - 1.5 * np.maximum(distance - 0.8, 0), 0, 0.7)
    rust = np.clip(np.maximum(body, spots) * 1.05 - 0.05, 0, 1)
    defect.rust[:] = rust
    defect.tone[:] = np.clip(0.65 - 0.5 * rust + 0.16 * speck + 0.12 * cloud, 0, 1)
    defect.relief[:] = -0.0004 * rust * np.abs(speck)


def make_defect(kind: str, seed: int, scene: Scene, solid: Field) -> tuple[Defect, NDArray[np.bool_]]:
    """The defect of this kind and seed, and the samples ``[N,N]`` of the part that it touches."""
    defect = Defect(*(np.zeros_like(solid) for _ in range(5)))
    if kind != "good":
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(PART_KINDS.index(kind),)))
        {"scratch": _scratch, "chipped_edge": _chip, "rust": _rust}[kind](rng, scene, defect)
    touched = (np.maximum(np.maximum(defect.wear, defect.cut), defect.rust) > 0.03) & (solid > 0)
    for field in (defect.relief, defect.wear, defect.rust, defect.cut):
        field[~touched] = 0  # tails too faint to see must not leave the mask
    return defect, touched
