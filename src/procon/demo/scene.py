"""The scene of a rendered part: pose, lamps, machined surface and the light it sends to the lens.

The part is a height field built from signed distances. A softbox, a fill lamp and the room light its slopes, so that
bevels, engraving and defects follow the same light. The picture is 1.8 units of length wide (twice `SPAN`), x to the
right and y down; (u, v) are the part's own axes. A ``Field`` is float32 ``[N,N]`` at twice the output resolution.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

Field = NDArray[np.float32]
Finish = tuple[Field, Field, Field]

SUPERSAMPLE = 2
SPAN = 0.9  # half the picture
CAMERA, THICKNESS = 4.2, 0.13  # lens above the face, face above the tray
BEVEL, BOSS, BOSS_RISE, BOLT = 0.034, 0.40, 0.055, 0.545  # BOLT: |u| and |v| of the bolt holes
MARKING = "PF-40  S355"


@dataclass(frozen=True)
class Hole:
    """Holes made with one tool, as offsets from the nearest centre, and their lengths."""

    du: Field
    dv: Field
    radius: Field
    drill: float  # radius of the bore
    mouth: float  # outer radius of the countersink
    turned: float  # radius within which the face was turned rather than brushed
    threads: float  # radians of thread per bore radius


class Scene:
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


def smooth_step(x: Field, low: float, high: float) -> Field:
    """Smooth 0 to 1 as ``x`` goes from ``low`` to ``high`` (which may be the smaller)."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def make_noise(rng: np.random.Generator, n: int, cells: int, octaves: int = 1) -> Field:
    """Smooth noise ``[n,n]`` of about unit deviation; its coarsest octave is ``cells`` wide."""
    total = np.zeros((n, n), np.float32)
    for octave in range(octaves):
        knots = rng.standard_normal((cells * 2**octave + 1,) * 2, dtype=np.float32)
        picture = Image.fromarray(knots).resize((n, n), Image.Resampling.BICUBIC)
        total += np.asarray(picture, np.float32) * np.float32(1.4 * 0.6**octave)
    return total


def blur(x: Field, sigma: float) -> Field:
    """Gaussian blur, ``sigma`` in samples."""
    return np.asarray(ndimage.gaussian_filter(x, sigma), np.float32)


def edge_distance(u: Field, v: Field) -> Field:
    """Signed distance to the plate's edge, negative inside: a rounded square with waisted sides."""
    a, b = np.abs(u), np.abs(v)
    square = np.hypot(np.maximum(a - 0.53, 0), np.maximum(b - 0.53, 0)) - 0.215
    waist = 1.55 - np.hypot(np.minimum(a, b), np.maximum(a, b) - 2.225)
    # A smooth maximum, so that the waist runs into the corners without a crease.
    blend = np.maximum(1 - np.abs(square - waist) / 0.12, 0)
    return np.asarray(np.maximum(square, waist) + 0.03 * blend * blend, np.float32)


def place_holes(u: Field, v: Field) -> list[Hole]:
    """The four bolt holes, the threaded bore and the dowel hole."""
    bolt = np.float32(BOLT)
    bolts = (u - np.copysign(bolt, u), v - np.copysign(bolt, v))
    dowel = (u + np.float32(0.36), v + np.float32(0.50))
    return [
        Hole(*bolts, np.hypot(*bolts), drill=0.072, mouth=0.122, turned=0.122, threads=0),
        Hole(u, v, np.hypot(u, v), drill=0.19, mouth=0.215, turned=BOSS, threads=140),
        Hole(*dowel, np.hypot(*dowel), drill=0.030, mouth=0.040, turned=0.040, threads=0),
    ]


@lru_cache(maxsize=2)
def _marking(m: int) -> Field:
    """The engraved text as a texture ``[m,m]`` of depth 0 to 1."""
    picture = Image.new("L", (m, m))
    font = ImageFont.load_default(m * 0.044)
    place = (m * 0.5, m * 0.7625)
    ImageDraw.Draw(picture).text(place, MARKING, fill=255, font=font, anchor="mm")
    return blur(np.asarray(picture, np.float32) / np.float32(255), m / 1000)


def machined_height(scene: Scene, outline: Field, holes: list[Hole]) -> Field:
    """Height of the machined surface over the plate's face; the bores are not yet open."""
    edge = np.clip(1 + outline / BEVEL, 0, 1.3)
    height = -0.5 * BEVEL * edge * edge
    centre = holes[1].radius
    height += BOSS_RISE * smooth_step(centre, BOSS, BOSS - 0.03)
    height -= 0.014 * smooth_step(np.abs(centre - 0.30), 0.016, 0.009)  # seal groove
    for hole in holes:
        depth = np.clip(hole.mouth - hole.radius, 0, hole.mouth - hole.drill)
        height -= depth * depth / (depth + 0.006)  # the 0.006 rounds the lip
    height -= 0.008 * scene.lookup(_marking(int(scene.n * 1.1)))
    return np.asarray(height, np.float32)


def tooling_marks(rng: np.random.Generator, scene: Scene, holes: list[Hole]) -> Finish:
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


def metal_light(scene: Scene, height: Field, finish: Finish, wear: Field) -> tuple[Field, Field]:
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


def tray_light(rng: np.random.Generator, n: int) -> Field:
    """Light leaving the moulded rubber tray under the part."""
    relief = 0.35 * make_noise(rng, n, n // 5) + 0.30 * make_noise(rng, n, 90, 2)
    slope = np.roll(relief, 1, axis=0) - np.roll(relief, -1, axis=0)
    return np.maximum(0.042 + 0.020 * slope + 0.004 * make_noise(rng, n, 6, 3), 0.004)


def key_light_share(scene: Scene, height: Field, solid: Field) -> Field:
    """How much key light arrives, 0 to 1: the height field marched towards the lamp, softened."""
    low = (height * solid - THICKNESS * (1 - solid))[::SUPERSAMPLE, ::SUPERSAMPLE]
    rise = float(scene.key[2] / np.hypot(scene.key[0], scene.key[1]))
    blocked = np.zeros_like(low)
    for travel in np.linspace(0.012, (THICKNESS + BOSS_RISE) / rise, 12):
        dx, dy = np.rint(scene.toward * travel / (SUPERSAMPLE * scene.pixel)).astype(int).tolist()
        above = np.roll(low, (-dy, -dx), axis=(0, 1)) - low - np.float32(travel * rise)
        np.maximum(blocked, np.clip(above / 0.04, 0, 1), out=blocked)
    soft = blur(blocked, scene.n / 360)
    near = blur(solid[::SUPERSAMPLE, ::SUPERSAMPLE], scene.n / 80)
    light = (1 - 0.85 * soft) * (1 - 0.55 * near * (low <= -THICKNESS))
    light = 0.25 + 0.75 * light  # the softbox is wide: no shadow is black
    return np.asarray(light, np.float32).repeat(SUPERSAMPLE, 0).repeat(SUPERSAMPLE, 1)


def look_into_bores(scene: Scene, holes: list[Hole], tray: Field) -> tuple[Field, Field]:
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
