"""The published benchmarks: names, categories, numbers of images."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Benchmark:
    """A published dataset."""

    name: str
    title: str
    categories: tuple[str, ...]
    counts: tuple[int, int, int]  # images as published: train, test good, test defective
    form: str = "mvtec"  # of its trees, see procon.evaluation.data.layouts.Tree
    inner: str | None = None  # a folder that may stand between the root and the categories
    spellings: Mapping[str, str] = field(default_factory=dict)  # folder name in lower case -> category


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MVTEC = _words(
    "bottle cable capsule carpet grid hazelnut leather metal_nut pill screw tile toothbrush transistor wood zipper"
)
_VISA = _words("candle capsules cashew chewinggum fryum macaroni1 macaroni2 pcb1 pcb2 pcb3 pcb4 pipe_fryum")
_REALIAD = _words(
    "audiojack bottle_cap button_battery end_cap eraser fire_hood mint mounts pcb phone_battery plastic_nut "
    "plastic_plug porcelain_doll regulator rolled_strip_base sim_card_set switch tape terminalblock toothbrush toy "
    "toy_brick transistor1 u_block usb usb_adaptor vcpill wooden_beads woodstick zipper"
)
_MPDD = _words("bracket_black bracket_brown bracket_white connector metal_plate tubes")
_MEDICAL = {  # the archives, the folders in them, and the names under which others pass them on
    "brain": _words("brain brain_ad brats2021_slice"),
    "liver": _words("liver liver_ad hist_diy"),
    "retina-RESC": _words("retina-resc retina_resc retina_resc_ad retinaresc_ad resc retinal"),
}

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("mvtec", "MVTec-AD", _MVTEC, (3629, 467, 1258)),
        Benchmark("visa", "VisA", _VISA, (8659, 962, 1200), inner="1cls"),
        Benchmark("realiad", "Real-IAD", _REALIAD, (36465, 63256, 51329)),
        Benchmark("mpdd", "MPDD", _MPDD, (888, 176, 282)),
        Benchmark("btad", "BTAD", ("01", "02", "03"), (1799, 451, 290), "ok-ko", "BTech_Dataset_transformed"),
        Benchmark(
            "medical",
            "Uni-Medical",
            tuple(_MEDICAL),
            (13339, 2514, 4499),
            "medical",
            spellings={folder: name for name, folders in _MEDICAL.items() for folder in folders},
        ),
    )
}
