"""Freeze the scores and maps of a dozen configurations, so that a change of the code can show it changed no bit.

    python benchmarks/freeze.py write frozen.json     # before the change
    python benchmarks/freeze.py check frozen.json     # after it: exits 1 and names what differs

Parts are rendered and the backbone is random, so it needs neither data nor weights. Results are exact for one machine
and one number of threads (both are set here); another processor may round differently, so the file is not kept.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.conftest import write_tiny_backbone  # noqa: E402

from procon import Config, Detector  # noqa: E402

try:
    from procon.demo.run.parts import render_part
except ModuleNotFoundError:  # the layout before the packages
    from procon.demo.parts import render_part

SIDE = 112
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "best": {"banks": 1, "score_relative_to": "anchors", "map_offset": 1.0},
    "levels of two banks": {"score_relative_to": "anchors"},
    "hard": {"readout": "hard"},
    "uniform": {"readout": "uniform"},
    "concat": {"layer_fusion": "concat", "projection_dim": 24},
    "median of layers": {"layer_fusion": "median", "layers": (-1, -2, -3)},
    "train scales": {"normalization": "train"},
    "robust": {"normalization": "robust"},
    "fixed tau": {"tau": 0.3},
    "subsampled tau": {"tau_patches": 7},
    "tiles": {"tile": 56},
    "pad": {"aspect": "pad"},
    "crop": {"resize": 140},
    "projected": {"projection_dim": 16},
    "fp16": {"compression": "fp16"},
    "int8": {"compression": "int8"},
    "random": {"coreset": "random"},
    "dense": {"coreset": "dense"},
    "wide": {"image_size": (70, 112)},
}


def digest(*values: Any) -> str:
    """A short sha256 over numbers, to the last bit."""
    found = hashlib.sha256()
    for value in values:
        array = np.ascontiguousarray(value, np.float64 if isinstance(value, float) else None)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def state(model: Any, images: list[Any]) -> dict[str, str]:
    """Everything a user sees of a model: the predictions of ``images`` and the threshold."""
    results = model.predict(images)
    found = {
        "scores": digest([result.score for result in results]),
        "maps": digest(*(result.heatmap for result in results)),
        "regions": digest(*(np.array([(*r.box, r.area, r.peak, r.mean) for r in p.regions]) for p in results)),
        "verdicts": digest([bool(p.is_anomalous) for p in results], [p.p_value or 0.0 for p in results]),
    }
    if model.calibration is not None:
        known = model.calibration
        found["threshold"] = digest([known.threshold, known.pixel_threshold, known.typical])
    return found


def explained(detector: Detector, image: Any) -> str:
    """The explanation of the peak, as numbers."""
    found = detector.explain(image)
    anchors = [(a.number, *a.box, a.bank, a.weight, a.distance) for layer in found.layers for a in layer.anchors]
    return digest([*found.xy, *found.box, found.score], np.array(anchors))


def freeze() -> dict[str, dict[str, str]]:
    """The state of every configuration, of edited models and of an export."""
    torch.set_num_threads(1)
    new = [render_part(kind, 100 + i, 160).image for i, kind in enumerate(("good", "scratch", "rust", "chipped_edge"))]
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        parts, wide = [], []
        for seed in range(14):
            part = render_part("good", seed, 160).image
            for pixels, paths in ((part, parts), (part[20:120], wide)):
                paths.append(Path(folder) / f"{len(pixels)}-{seed}.png")
                Image.fromarray(pixels).save(paths[-1])
        weights = write_tiny_backbone(Path(folder) / "tiny")
        base: dict[str, Any] = {
            "backbone": "dinov2-custom",
            "weights": str(weights),
            "image_size": SIDE,
            "layers": (-1, -3),
            "banks": 2,
            "coreset_ratio": 0.2,
            "num_neighbors": 3,
            "selection_dim": 16,
        }

        def fitted(images: list[Any], **settings: Any) -> Detector:
            return Detector(Config(**{**base, **settings}), device="cpu").fit(images)

        for name, settings in CONFIGURATIONS.items():
            good = wide if name in ("pad", "wide") else parts
            detector = fitted(good[:10], **settings)
            found[name] = state(detector, new) | {"explanation": explained(detector, new[2])}
        region = [(20, 20), (140, 20), (140, 140), (20, 140)]
        with_roi = Detector(Config(**base), device="cpu").fit(parts[:10], roi=region)
        found["roi"] = state(with_roi, new) | {"explanation": explained(with_roi, new[2])}
        for name, settings in (("paper", {}), ("best", CONFIGURATIONS["best"])):
            edited = fitted(parts[:8], **settings)
            edited.partial_fit(parts[8:12])
            found[f"{name}: added"] = state(edited, new)
            edited.forget([parts[3], parts[5]])
            found[f"{name}: forgotten"] = state(edited, new)
            edited.merge(fitted([parts[12], parts[13], wide[0]], **settings))
            found[f"{name}: merged"] = state(edited, new)
            edited.calibrate(wide[4:9], false_alarm_rate=0.2)
            found[f"{name}: calibrated"] = state(edited, new)
            edited.save(Path(folder) / "model.procon")
            found[f"{name}: loaded"] = state(Detector.load(Path(folder) / "model.procon", device="cpu"), new)
        suspects = fitted([*parts[:9], wide[9]]).suspects()
        found["suspects"] = {"ranking": digest([float(s.number) for s in suspects], [s.excess for s in suspects])}
        from procon.deploy import Runtime
        from procon.deploy.export import export

        for name in ("paper", "best", "concat", "hard"):
            target = Path(folder) / f"exported-{name}"
            export(fitted(parts[:10], **CONFIGURATIONS[name]), target, measure_memory=False)
            found[f"{name}: exported"] = state(Runtime(target, threads=1), new)
    return found


def main() -> int:
    action, path = sys.argv[1], Path(sys.argv[2])
    found = freeze()
    if action == "write":
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"froze {len(found)} states in {path}")
        return 0
    before = json.loads(path.read_text(encoding="utf-8"))
    different = [f"{name}: {key}" for name in before for key in before[name] if before[name][key] != found[name][key]]
    print("\n".join(different) or f"{len(before)} states are equal to the last bit")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
