"""Procedural photographs of a machined flange, good or with one of three defects, with exact masks.

The part is a height field built from signed distances; a softbox, a fill lamp and the room light
its slopes, so bevels, engraving and defects all answer to the same light. The picture is 1.8 units
of length wide (twice `SPAN`), x to the right and y down; (u, v) are the part's own axes. Inside, a
``Field`` is float32 ``[N,N]`` at twice the output resolution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

Field = NDArray[np.float32]
Finish = tuple[Field, Field, Field]

DEFECT_KINDS: tuple[str, ...] = ("scratch", "chipped_edge", "rust")
KINDS: tuple[str, ...] = ("good", *DEFECT_KINDS)
MIN_SIZE = 64  # pixels; below it the drilled holes are no longer resolved

SUPERSAMPLE = 2
SPAN = 0.9  # half the picture
CAMERA, THICKNESS = 4.2, 0.13  # lens above the face, face above the tray
BEVEL, BOSS, BOSS_RISE, BOLT = 0.034, 0.40, 0.055, 0.545  # BOLT: |u| and |v| of the bolt holes
MARKING = "PF-40  S355"
COOL = (0.88, 0.96, 1.06)  # RGB of the fill lamp and the room
RUST_DARK, RUST_LIGHT = (0.105, 0.036, 0.014), (0.30, 0.115, 0.036)  # linear RGB
TARNISH = (0.66, 0.46, 0.30)  # what a thin film of rust leaves of the metal's light, RGB


@dataclass(frozen=True)
class Part:
    """One picture: ``image`` uint8 ``[H,W,3]`` sRGB, ``mask`` bool ``[H,W]`` True on the defect."""

    name: str
    kind: str
    image: NDArray[np.uint8]
    mask: NDArray[np.bool_]


@dataclass(frozen=True)
class _Hole:
    """Holes made with one tool, as offsets from the nearest centre, and their lengths."""

    du: Field
    dv: Field
    radius: Field
    drill: float  # radius of the bore
    mouth: float  # outer radius of the countersink
    turned: float  # radius within which the face was turned rather than brushed
    threads: float  # radians of thread per bore radius


@dataclass(frozen=True)
class _Defect:
    """What a defect changes; all zero on a good part."""

    relief: Field  # added to the height
    wear: Field  # 0 keeps the machined finish, 1 is bare rough metal
    rust: Field  # opacity
    tone: Field  # of that rust: 0 dark, 1 light
    cut: Field  # 1 where the material is gone down to the tray


class _Scene:
    """Pose and lamps of one picture, and the sample grid they give."""

    def __init__(self, rng: np.random.Generator, n: int) -> None:
        self.n, self.pixel = n, 2 * SPAN / n  # samples a side, and the side of one
        angle = np.deg2rad(rng.uniform(-3, 3))
        self.cos, self.sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        self.shift = rng.uniform(-0.02, 0.02, 2).astype(np.float32)
        axis = ((np.arange(n) + 0.5) * self.pixel - SPAN).astype(np.float32)
        self.u, self.v = self.turn(axis[None, :] - self.shift[0], axis[:, None] - self.shift[1])
        azimuth = np.deg2rad(rng.uniform(-140, -104))
        # Seen from above, the key lamp lies this way.
        self.toward = np.array([np.cos(azimuth), np.sin(azimuth)], np.float32)
        self.key = np.array([*(self.toward * rng.uniform(1.55, 1.95)), 2.5], np.float32)
        self.fill = np.array([rng.uniform(1.7, 2.2), rng.uniform(0.6, 1.4), 1.9], np.float32)
        self.gain, self.ambient = rng.uniform(0.88, 1.12, 2).astype(np.float32)
        warmth = rng.uniform(-0.03, 0.03)
        self.warm = (1.0 + warmth, 0.985, 0.945 - warmth)  # RGB of the key lamp

    def turn(self, x: Field, y: Field) -> tuple[Field, Field]:
        """Components along the part's axes of a vector given in the picture's."""
        return self.cos * x + self.sin * y, self.cos * y - self.sin * x

    def lookup(self, texture: Field) -> Field:
        """A texture ``[M,M]`` over [-1, 1] in both part axes, read at each sample."""
        m = texture.shape[0]
        row = (self.v + 1) * np.float32(m / 2)
        rows = row.astype(np.int32)
        index = rows * m + ((self.u + 1) * np.float32(m / 2)).astype(np.int32)
        # Between rows only: brushing is smooth along u, but would tear at the nearest row.
        below, flat = row - rows, texture.ravel()
        return np.asarray(flat[index] * (1 - below) + flat[index + m] * below, np.float32)

    def mirror(self, lamp: Field) -> tuple[Field, Field]:
        """The slope, along u and v, that a facet needs to reflect the lamp into the lens."""
        total = [np.zeros_like(self.u) for _ in range(3)]
        for x, y, height in ((0.0, 0.0, CAMERA), lamp):
            pu, pv = self.turn(np.float32(x) - self.shift[0], np.float32(y) - self.shift[1])
            du, dv, up = pu - self.u, pv - self.v, np.float32(height)
            inverse = np.asarray(1 / np.sqrt(du * du + dv * dv + up * up), np.float32)
            total = [total[0] + du * inverse, total[1] + dv * inverse, total[2] + up * inverse]
        return total[0] / total[2], total[1] / total[2]


def _step(x: Field, low: float, high: float) -> Field:
    """Smooth 0 to 1 as ``x`` goes from ``low`` to ``high`` (which may be the smaller)."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def _noise(rng: np.random.Generator, n: int, cells: int, octaves: int = 1) -> Field:
    """Smooth noise ``[n,n]`` of about unit deviation; its coarsest octave is ``cells`` wide."""
    total = np.zeros((n, n), np.float32)
    for octave in range(octaves):
        knots = rng.standard_normal((cells * 2**octave + 1,) * 2, dtype=np.float32)
        picture = Image.fromarray(knots).resize((n, n), Image.Resampling.BICUBIC)
        total += np.asarray(picture, np.float32) * np.float32(1.4 * 0.6**octave)
    return total


def _blur(x: Field, sigma: float) -> Field:
    """Gaussian blur, ``sigma`` in samples."""
    return np.asarray(ndimage.gaussian_filter(x, sigma), np.float32)


def _outline(u: Field, v: Field) -> Field:
    """Signed distance to the plate's edge, negative inside: a rounded square with waisted sides."""
    a, b = np.abs(u), np.abs(v)
    square = np.hypot(np.maximum(a - 0.53, 0), np.maximum(b - 0.53, 0)) - 0.215
    waist = 1.55 - np.hypot(np.minimum(a, b), np.maximum(a, b) - 2.225)
    # A smooth maximum, so that the waist runs into the corners without a crease.
    blend = np.maximum(1 - np.abs(square - waist) / 0.12, 0)
    return np.asarray(np.maximum(square, waist) + 0.03 * blend * blend, np.float32)


def _holes(u: Field, v: Field) -> list[_Hole]:
    """The four bolt holes, the threaded bore and the dowel hole."""
    bolt = np.float32(BOLT)
    bolts = (u - np.copysign(bolt, u), v - np.copysign(bolt, v))
    dowel = (u + np.float32(0.36), v + np.float32(0.50))
    return [
        _Hole(*bolts, np.hypot(*bolts), drill=0.072, mouth=0.122, turned=0.122, threads=0),
        _Hole(u, v, np.hypot(u, v), drill=0.19, mouth=0.215, turned=BOSS, threads=140),
        _Hole(*dowel, np.hypot(*dowel), drill=0.030, mouth=0.040, turned=0.040, threads=0),
    ]


@lru_cache(maxsize=2)
def _marking(m: int) -> Field:
    """The engraved text as a texture ``[m,m]`` of depth 0 to 1."""
    picture = Image.new("L", (m, m))
    font = ImageFont.load_default(m * 0.044)
    place = (m * 0.5, m * 0.7625)
    ImageDraw.Draw(picture).text(place, MARKING, fill=255, font=font, anchor="mm")
    return _blur(np.asarray(picture, np.float32) / np.float32(255), m / 1000)


def _height(scene: _Scene, outline: Field, holes: list[_Hole]) -> Field:
    """Height of the machined surface over the plate's face; the bores are not yet open."""
    edge = np.clip(1 + outline / BEVEL, 0, 1.3)
    height = -0.5 * BEVEL * edge * edge
    centre = holes[1].radius
    height += BOSS_RISE * _step(centre, BOSS, BOSS - 0.03)
    height -= 0.014 * _step(np.abs(centre - 0.30), 0.016, 0.009)  # seal groove
    for hole in holes:
        depth = np.clip(hole.mouth - hole.radius, 0, hole.mouth - hole.drill)
        height -= depth * depth / (depth + 0.006)  # the 0.006 rounds the lip
    height -= 0.008 * scene.lookup(_marking(int(scene.n * 1.1)))
    return np.asarray(height, np.float32)


def _finish(rng: np.random.Generator, scene: _Scene, holes: list[_Hole]) -> Finish:
    """Tooling marks: their direction along u and v, and their grain, of about unit deviation.

    The face is brushed along u; the boss and the countersinks are turned, their marks are circles.
    """
    m = int(scene.n * 1.1)
    white = rng.standard_normal((m, m), dtype=np.float32)
    texture = np.zeros((m, m), np.float32)
    for share, length in ((0.75, 0.05), (0.65, 0.35)):
        width = max(3, int(length * m))
        streak: Field = ndimage.uniform_filter1d(white, width, axis=1, mode="wrap")
        texture += np.roll(streak, width, axis=0) * np.float32(share * width**0.5)
    grain = scene.lookup(texture)
    along_u, along_v = np.ones_like(grain), np.zeros_like(grain)
    rings = rng.standard_normal(scene.n, dtype=np.float32)
    for hole in holes:
        turned = hole.radius < hole.turned
        radius = hole.radius[turned] + np.float32(1e-6)
        along_u[turned], along_v[turned] = -hole.dv[turned] / radius, hole.du[turned] / radius
        ring = rings[(radius * (scene.n * 0.45)).astype(np.int32)]
        grain[turned] = 0.8 * ring + 0.25 * grain[turned]
    return along_u, along_v, grain


def _metal(scene: _Scene, height: Field, finish: Finish, wear: Field) -> tuple[Field, Field]:
    """Light leaving the metal: the key lamp's share, and that of the fill lamp and the room."""
    dy, dx = (np.asarray(d, np.float32) for d in np.gradient(height, np.float32(scene.pixel)))
    slope_u, slope_v = scene.turn(dx, dy)
    along_u, along_v, grain = finish
    grain = grain * (1 - wear)
    lobes = []
    for lamp in (scene.key, scene.fill):
        need_u, need_v = scene.mirror(lamp)
        off_u, off_v = need_u + slope_u, need_v + slope_v
        # Tool marks scatter light across themselves: the lobe is narrow along them, wide across.
        along = (off_u * along_u + off_v * along_v) / (0.17 + 0.28 * wear)
        across = (off_v * along_u - off_u * along_v + 0.07 * grain) / (0.40 + 0.05 * wear)
        lobes.append(np.exp(-along * along - across * across) * (1 - 0.45 * wear))
    # The room is bright behind the key lamp, which draws the thin highlight on bevels that face it,
    # and dark opposite. `tilt` is how far the surface leans towards the key lamp, -1 to 1.
    lean = dx * scene.toward[0] + dy * scene.toward[1]
    tilt = -lean / np.sqrt(1 + dx * dx + dy * dy)
    room = np.clip(0.5 + 0.9 * tilt, 0.04, 1) + 1.8 * np.exp(-(((tilt - 0.55) / 0.16) ** 2))
    tone = 1 + 0.05 * grain
    key = scene.gain * (1.25 * lobes[0] + 0.03) * tone
    return key, scene.ambient * (0.40 * lobes[1] + 0.26 * room) * tone


def _tray(rng: np.random.Generator, n: int) -> Field:
    """Light leaving the moulded rubber tray under the part."""
    relief = 0.35 * _noise(rng, n, n // 5) + 0.30 * _noise(rng, n, 90, 2)
    slope = np.roll(relief, 1, axis=0) - np.roll(relief, -1, axis=0)
    return np.maximum(0.042 + 0.020 * slope + 0.004 * _noise(rng, n, 6, 3), 0.004)


def _reached(scene: _Scene, height: Field, solid: Field) -> Field:
    """How much key light arrives, 0 to 1: the height field marched towards the lamp, softened."""
    low = (height * solid - THICKNESS * (1 - solid))[::SUPERSAMPLE, ::SUPERSAMPLE]
    rise = float(scene.key[2] / np.hypot(scene.key[0], scene.key[1]))
    blocked = np.zeros_like(low)
    for travel in np.linspace(0.012, (THICKNESS + BOSS_RISE) / rise, 12):
        dx, dy = np.rint(scene.toward * travel / (SUPERSAMPLE * scene.pixel)).astype(int).tolist()
        above = np.roll(low, (-dy, -dx), axis=(0, 1)) - low - np.float32(travel * rise)
        np.maximum(blocked, np.clip(above / 0.04, 0, 1), out=blocked)
    soft = _blur(blocked, scene.n / 360)
    near = _blur(solid[::SUPERSAMPLE, ::SUPERSAMPLE], scene.n / 80)
    light = (1 - 0.85 * soft) * (1 - 0.55 * near * (low <= -THICKNESS))
    light = 0.25 + 0.75 * light  # the softbox is wide: no shadow is black
    return np.asarray(light, np.float32).repeat(SUPERSAMPLE, 0).repeat(SUPERSAMPLE, 1)


def _wells(scene: _Scene, holes: list[_Hole], tray: Field) -> tuple[Field, Field]:
    """The bores: how open each sample is, 0 to 1, and the light seen inside."""
    lamp_u, lamp_v = scene.turn(scene.toward[:1], scene.toward[1:])
    opening, inside = np.zeros_like(tray), tray * np.float32(0.22)
    for hole in holes:
        bore = np.clip(0.5 + (hole.drill - hole.radius) / scene.pixel, 0, 1)
        np.maximum(opening, bore, out=opening)
        where = hole.radius < hole.drill + scene.pixel
        du, dv = hole.du[where], hole.dv[where]
        # The far rim is further from the lens, so it is smaller and drawn towards the axis.
        far = np.hypot(0.945 * du + 0.055 * scene.u[where], 0.945 * dv + 0.055 * scene.v[where])
        wall = far / (hole.drill * 0.86)
        facing = -(du * lamp_u + dv * lamp_v) / hole.drill
        lit = 0.03 + 0.45 * np.clip(facing, 0, 1) ** 1.5 + 0.05 * np.clip(-facing, 0, 1)
        lit *= 0.75 + 0.25 * np.sin(wall * hole.threads)
        rim = np.clip((wall - 1) * (hole.drill / (2 * scene.pixel)), 0, 1)
        inside[where] += rim * (lit - inside[where])
    return opening, inside


def _spot(rng: np.random.Generator) -> tuple[Field, Field]:
    """A place on the brushed face, clear of the boss, the bolt holes and the edge."""
    u, v = rng.uniform(-0.66, 0.66, (2, 256)).astype(np.float32)
    clear = (_outline(u, v) < -0.07) & (np.hypot(u, v) > BOSS + 0.04)
    clear &= np.hypot(np.abs(u) - BOLT, np.abs(v) - BOLT) > 0.15
    first = int(np.argmax(clear))  # a quarter of the draws are clear
    return u[first], v[first]


def _scratch(rng: np.random.Generator, scene: _Scene, defect: _Defect) -> None:
    """One to three strands of one slip: a groove, a burr on one side, bare metal."""
    u, v = _spot(rng)
    heading = rng.uniform(0.35, 2.8)  # never quite along the brushing, which would hide it
    length, bend = rng.uniform(0.22, 0.35), rng.uniform(-0.9, 0.9)
    c, s = np.float32(np.cos(heading)), np.float32(np.sin(heading))
    along = (scene.u - u) * c + (scene.v - v) * s
    side = (scene.v - v) * c - (scene.u - u) * s
    wobble = 0.012 * _blur(rng.standard_normal(512, dtype=np.float32), 12)
    chatter = 0.85 + 0.5 * _blur(rng.standard_normal(512, dtype=np.float32), 3)
    index = np.clip((along * 512 + 256).astype(np.int32), 0, 511)
    for strand in range(int(rng.integers(1, 4))):
        offset = (0, 1, -1)[strand] * rng.uniform(0.009, 0.016)
        start, end = np.array([-0.5, 0.5]) * length * rng.uniform(0.7, 1, 2)
        press = _step(along, start, start + 0.03) * _step(along, end, end - 0.15)
        press *= chatter[index] * (1 if strand == 0 else 0.5)
        off = (side - bend * along * along - wobble[index] - offset) / (0.0024 + 0.0026 * press)
        groove, burr = press * np.exp(-off * off), press * np.exp(-((off - 1.9) ** 2))
        defect.relief[:] += 0.0060 * (0.5 * burr - groove)
        np.maximum(defect.wear, np.clip(0.9 * groove + 0.3 * burr, 0, 1), out=defect.wear)


def _chip(rng: np.random.Generator, scene: _Scene, defect: _Defect) -> None:
    """A bite out of the edge: material gone at the rim, a broken slope of facets behind it."""
    heading = rng.uniform(0, 2 * np.pi)
    c, s = np.float32(np.cos(heading)), np.float32(np.sin(heading))
    ray = np.linspace(0.4, 1.1, 700, dtype=np.float32)
    rim = ray[np.argmax(_outline(ray * c, ray * s) > 0)]
    size, stretch = rng.uniform(0.075, 0.125), np.float32(rng.uniform(1.0, 1.7))
    out, side = scene.u * c + scene.v * s - rim, scene.v * c - scene.u * s
    reach = np.hypot(out, side / stretch) - 0.012 * _noise(rng, scene.n, 16, 4)
    slope = np.clip(1 - reach / size, 0, 1)
    broken = _step(slope, 0, 0.12)
    facets = np.abs(_noise(rng, scene.n, 45, 3))
    defect.cut[:] = np.clip(0.5 + (0.6 * size - reach) / scene.pixel, 0, 1)
    defect.relief[:] = -0.11 * slope * slope - 0.0021 * broken * facets
    defect.wear[:] = broken


def _rust(rng: np.random.Generator, scene: _Scene, defect: _Defect) -> None:
    """A bloom of corrosion with satellites: colour, no more gloss, a pitted surface."""
    u, v = _spot(rng)
    size, squash = rng.uniform(0.045, 0.085), np.float32(rng.uniform(0.8, 1.5))
    cloud, speck = _noise(rng, scene.n, 26, 4), _noise(rng, scene.n, 90, 2)
    distance = np.hypot(scene.u - u, (scene.v - v) * squash) / np.float32(size)
    body = _step(1.15 - distance + 0.24 * cloud, -0.25, 0.85)
    spots = 0.8 * _step(0.5 * speck - 0.35 - 1.5 * np.maximum(distance - 0.8, 0), 0, 0.7)
    rust = np.clip(np.maximum(body, spots) * 1.05 - 0.05, 0, 1)
    defect.rust[:] = rust
    defect.tone[:] = np.clip(0.65 - 0.5 * rust + 0.16 * speck + 0.12 * cloud, 0, 1)
    defect.relief[:] = -0.0004 * rust * np.abs(speck)


def _defect(kind: str, seed: int, scene: _Scene, solid: Field) -> tuple[_Defect, NDArray[np.bool_]]:
    """The defect of this kind and seed, and the samples ``[N,N]`` of the part that it touches."""
    defect = _Defect(*(np.zeros_like(solid) for _ in range(5)))
    if kind != "good":
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(KINDS.index(kind),)))
        {"scratch": _scratch, "chipped_edge": _chip, "rust": _rust}[kind](rng, scene, defect)
    touched = (np.maximum(np.maximum(defect.wear, defect.cut), defect.rust) > 0.03) & (solid > 0)
    for field in (defect.relief, defect.wear, defect.rust, defect.cut):
        field[~touched] = 0  # tails too faint to see must not leave the mask
    return defect, touched


def _compose(kind: str, seed: int, size: int) -> tuple[list[Field], NDArray[np.bool_]]:
    """Linear light of the three channels, and the samples ``[N,N]`` that the defect touches."""
    # The scene never draws from the defect's generator: all kinds of one seed share their scene.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    scene = _Scene(rng, size * SUPERSAMPLE)
    outline, holes = _outline(scene.u, scene.v), _holes(scene.u, scene.v)
    height, tray = _height(scene, outline, holes), _tray(rng, scene.n)
    finish = _finish(rng, scene, holes)
    mottle = 1 + 0.02 * _noise(rng, scene.n, 5, 3)
    opening, inside = _wells(scene, holes, tray)
    solid = np.clip(0.5 - outline / scene.pixel, 0, 1) * (1 - opening)
    defect, touched = _defect(kind, seed, scene, solid)
    left = solid * (1 - defect.cut)
    # A chip would also move the shadow beside the part, by less than the dark tray shows: left out,
    # so that nothing changes outside the mask.
    reached = _reached(scene, height, solid)
    if defect.cut.any():
        reached = np.where(touched, _reached(scene, height, left), reached)
    key, rest = _metal(scene, height + defect.relief, finish, defect.wear)
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


def _develop(channels: list[Field], seed: int, size: int) -> NDArray[np.uint8]:
    """Lens, sensor and tone curve: linear light to sRGB bytes ``[size,size,3]``."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, 1)))
    sigma = rng.uniform(0.40, 0.60) * size / 448
    axis = np.linspace(-1, 1, size, dtype=np.float32) ** 2
    vignette = 1 - 0.11 * (axis[:, None] + axis[None, :])
    image = np.empty((size, size, 3), np.uint8)
    for c, channel in enumerate(channels):
        light = channel.reshape(size, SUPERSAMPLE, size, SUPERSAMPLE).mean((1, 3)) * vignette
        light = _blur(np.minimum(light, 1.6), sigma)
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


def render_part(kind: str, seed: int, size: int = 448, name: str = "000") -> Part:
    """Photograph one part, ``size`` pixels square; the same arguments give the same bytes.

    All kinds of one seed show the same part in the same light: from a pixel outside its mask on, a
    defective one equals its good twin to within 2 grey levels.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    _check(seed=(seed, 0), size=(size, MIN_SIZE))
    channels, touched = _compose(kind, seed, size)
    seen = np.any(touched.reshape(size, SUPERSAMPLE, size, SUPERSAMPLE), axis=(1, 3))
    # One pixel more, because the lens spreads the defect's border that far.
    mask = np.asarray(ndimage.binary_dilation(np.asarray(seen)), np.bool_)
    return Part(name, kind, _develop(channels, seed, size), mask)


def plan_set(train: int, good: int, defects_per_kind: int, seed: int = 0) -> list[tuple[str, str, str, int]]:
    """(split, kind, name, seed) of every part of a set: training parts, good test parts, then each defect kind.

    A part depends on ``seed``, its group and its place there alone, so a larger set extends a
    smaller one. Names count up from "000" within each group.
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


def render_set(
    train: int, good: int, defects_per_kind: int, seed: int = 0, size: int = 448
) -> tuple[list[Part], list[Part]]:
    """The training parts and the test parts of :func:`plan_set`."""
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    for split, kind, name, one in plan_set(train, good, defects_per_kind, seed):
        parts[split].append(render_part(kind, one, size, name))
    return parts["train"], parts["test"]


def _save(pixels: NDArray[np.uint8], path: Path) -> None:
    """Write a PNG beside its place and move it there, so that no reader meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    Image.fromarray(pixels).save(draft, format="PNG")
    draft.replace(path)


def write_set(
    folder: Path,
    *,
    train: int,
    good: int,
    defects_per_kind: int,
    seed: int = 0,
    size: int = 448,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the parts of :func:`plan_set` as an MVTec tree under ``folder``, replacing files of the same names.

    ``train/good/000.png``, ``test/<kind>/000.png``, and for each defect
    ``ground_truth/<kind>/000_mask.png`` (uint8, 0 or 255). Other files there are left alone.
    ``progress`` hears (done, total) parts.
    """
    plan = plan_set(train, good, defects_per_kind, seed)
    for done, (split, kind, name, one) in enumerate(plan, start=1):
        part = render_part(kind, one, size, name)
        _save(part.image, folder / split / kind / f"{name}.png")
        if kind != "good":
            mask = np.where(part.mask, np.uint8(255), np.uint8(0))
            _save(mask, folder / "ground_truth" / kind / f"{name}_mask.png")
        if progress is not None:
            progress(done, len(plan))
