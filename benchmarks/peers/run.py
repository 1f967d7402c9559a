"""Other systems on the same images, measured like ours: raw files that ``procon report`` joins, and a table.

    PYTHONPATH=src .venvs/peers/bin/python benchmarks/peers/run.py --data DIR --weights FILE --run RUN [--lite FILE]

Every system is fitted and asked about every test image in a process of its own, on all cores, image by image. Maps and
scores go to RUN/SET/raw, times and bytes to RUN/SET/peers, and ``benchmarks/results/peers.csv`` is written from both;
what is there is not run again. ``--lite`` is EfficientNet-Lite0, for peers that want a CNN: see README.md.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from systems import SYSTEMS, System

from environment import read_rows, write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import Category, open_dataset
from procon.evaluation.runs.run import Run, variant_name
from procon.evaluation.runs.sweep import VariantScores
from procon.model.verdict import make_prediction
from procon.vision.images import open_image

METRICS = ("i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro", "pauroc30")
COSTS = ("fit_s", "score_ms", "peak_mib", "model_mib")
TIMED_STEPS = 4  # of a system that is trained, before it is given up or goes on
Outcome = tuple[float, list[float], VariantScores, tuple[int, int], int]
"""Seconds to fit, seconds of each image, scores and maps, size of the maps, bytes of the model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="datasets: mpdd, hazelnut_toy")
    parser.add_argument("--weights", type=Path, required=True, help="dinov2_vits14_dav2_fp16.safetensors")
    parser.add_argument("--lite", type=Path, help="efficientnet-lite0-57934424.pth")
    parser.add_argument("--run", type=Path, required=True, help="folder for the raw results")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--categories", nargs="+")
    parser.add_argument(
        "--device",
        default="cpu",
        choices=("cpu", "cuda"),
        help="cuda: for systems that are trained, whose times are then noted only",
    )
    parser.add_argument("--limit", type=int, default=480, help="seconds after which a system is stopped")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        measure_one(arguments, arguments.data[0], arguments.child[1], arguments.child[0])
        return
    for root in arguments.data:
        for category in open_dataset(root).categories:
            if not arguments.categories or category in arguments.categories:
                for name in arguments.systems:
                    attempt(arguments, root, category, name)
    write_table(arguments)


def open_run(arguments: argparse.Namespace, root: Path) -> Run:
    base = Config(backbone="dinov2-small", weights=str(arguments.weights))
    return Run(arguments.run / root.name, open_dataset(root), base)


def raw_name(run: Run, name: str) -> str:
    """What the raw file of a system is called: ours are variants of the run where they share its input."""
    settings = SYSTEMS[name].settings
    if settings is None:
        return f"anomalib-{name}"
    config = replace(run.base, **settings)
    return variant_name(config) if config.input_size == run.base.input_size else name


def cost_file(run: Run, category: str, name: str) -> Path:
    return run.folder / "peers" / category / f"{name}.json"


def attempt(arguments: argparse.Namespace, root: Path, category: str, name: str) -> None:
    """Measure a system in a process of its own, once; why it could not be is noted in the place of its numbers."""
    run, system = open_run(arguments, root), SYSTEMS[name]
    path = cost_file(run, category, name)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if system.make is None and system.settings is None:
        path.write_text(json.dumps({"note": system.note}))
        return
    words = [sys.executable, "-W", "ignore", __file__, "--data", str(root), "--weights", str(arguments.weights)]
    words += ["--run", str(arguments.run), "--limit", str(arguments.limit), "--device", arguments.device]
    words += ["--child", name, category]
    words += ["--lite", str(arguments.lite)] if arguments.lite else []
    print(f"{category} {name} ...", flush=True)
    try:
        done = subprocess.run(words, timeout=arguments.limit, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        path.write_text(json.dumps({"note": f"not run: not through after {arguments.limit} s on two cores"}))
        return
    if done.returncode:
        print(done.stderr[-3000:])
        reason = done.stderr.strip().splitlines()[-1]
        if done.returncode < 0:  # the kernel, not the system, has the last word where memory runs out
            reason = f"killed by signal {-done.returncode} with the memory of the machine used up"
        path.write_text(json.dumps({"note": f"not run: {reason}"}))


def measure_one(arguments: argparse.Namespace, root: Path, category: str, name: str) -> None:
    """Fit and score in this process; write the raw file and what it cost."""
    run, system = open_run(arguments, root), SYSTEMS[name]
    listed = run.dataset.category(category)
    if system.settings is not None:
        config = replace(run.base, **system.settings)
        fit, seconds, scored, size, model = ours(config, listed)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        variant = raw_name(run, name)
        known = {"system": "procon", "config": config.to_dict()}
        if variant == name:
            known = {"system": system.title.replace("`", "")}
        run.write(category, variant, scored, listed.test, {**known, "size": size, "backbone": system.backbone})
    else:
        from weights import provide

        provide(arguments.weights, arguments.lite)
        fit, seconds, scored, size, model = theirs(system, listed, arguments.limit, arguments.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        about = {
            "system": f"anomalib {system.title}",
            "size": size,
            "resize": system.resize,
            "backbone": system.backbone,
        }
        run.write(category, f"anomalib-{name}", scored, listed.test, about)
    costs: dict[str, Any] = {
        "fit_s": round(fit, 1),
        "score_ms": round(1000 * statistics.median(seconds), 1),
        "peak_mib": round(peak / 1024),
        "model_mib": round(model / 2**20, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    remark = busy()
    if arguments.device == "cuda":  # what another machine takes must not stand in a column of these
        remark = f"on an {torch.cuda.get_device_name()}: {fit:.0f} s to fit, {costs['score_ms']} ms an image"
        costs |= dict.fromkeys(("fit_s", "score_ms", "peak_mib", "load"), "")
    costs["note"] = "; ".join(text for text in (system.note, remark) if text)
    cost_file(run, category, name).write_text(json.dumps(costs))


def ours(config: Config, listed: Category) -> Outcome:
    started = time.perf_counter()
    detector = Detector(config, device="cpu")
    detector.fit(list(listed.train))
    fit = time.perf_counter() - started
    seconds, scores, maps = [], [], []
    for sample in listed.test:
        started = time.perf_counter()
        picture = open_image(sample.path)
        (measured,) = detector.scorer.measure([detector.scorer.prepare(picture)], picture.size)
        make_prediction(detector.scorer, picture, measured)
        seconds.append(time.perf_counter() - started)
        scores.append(measured.score)
        maps.append(measured.input_map)
    with tempfile.TemporaryDirectory() as folder:
        model = detector.save(Path(folder) / "part.procon").stat().st_size
    return fit, seconds, VariantScores(np.array(scores, np.float32), np.stack(maps)), config.input_size, model


def theirs(system: System, listed: Category, limit: int, device: str) -> Outcome:
    """An anomalib model: fitted by Lightning as its own trainer arguments say, asked image by image, unnormalised.

    One that is trained is given up after a few steps if all of them would take longer than ``limit`` seconds.
    """
    from anomalib.data import Folder
    from anomalib.data.utils import read_image
    from lightning.pytorch import Callback, Trainer, seed_everything
    from torch.utils.data import DataLoader

    class _Patience(Callback):
        def __init__(self, steps: int, limit: float) -> None:
            self._steps, self._limit, self._ends = steps, limit, list[float]()

        def on_train_batch_end(self, *_: Any) -> None:
            self._ends.append(time.perf_counter())
            if len(self._ends) == TIMED_STEPS + 1:  # the first warms up
                step = (self._ends[-1] - self._ends[0]) / TIMED_STEPS
                if step * self._steps > self._limit:
                    hours = step * self._steps / 3600
                    sys.exit(
                        f"its {self._steps:,} steps of 8 images would take {hours:.0f} hours on two cores, "
                        f"{step:.1f} s each ({TIMED_STEPS} were timed)"
                    )

    seed_everything(0)
    assert system.make is not None
    started = time.perf_counter()
    model = system.make()
    good = listed.train[0].parent
    data = Folder(name="part", root=good.parent, normal_dir=good.name, train_batch_size=8, num_workers=0,
                  val_split_mode="none", test_split_mode="none")  # fmt: skip
    data.setup()
    images = data.train_dataloader()
    if device == "cuda":  # decoding would take longer than the steps; workers of its own loader end with every epoch
        torch.set_float32_matmul_precision("high")
        images = DataLoader(data.train_data, 8, shuffle=True, num_workers=2, persistent_workers=True,
                            collate_fn=data.train_data.collate_fn)  # fmt: skip
    settings = {key: value for key, value in model.trainer_arguments.items() if key != "devices"}
    if steps := system.steps or system.epochs * len(images):
        settings |= {"max_steps": steps, "callbacks": [_Patience(steps, limit)]}
    Trainer(accelerator=device, devices=1, logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, **settings).fit(model, train_dataloaders=images)  # fmt: skip
    fit = time.perf_counter() - started
    model.eval().to(device)
    seconds, scores, maps = [], [], []
    with torch.inference_mode():
        for sample in listed.test:
            started = time.perf_counter()
            pixels = model.pre_processor.transform(read_image(sample.path, as_tensor=True)).unsqueeze(0)
            answer = model.model(pixels.to(device))
            scores.append(float(answer.pred_score.flatten()[0]))
            maps.append(answer.anomaly_map.reshape(answer.anomaly_map.shape[-2:]).float().cpu().numpy())
            seconds.append(time.perf_counter() - started)
    return (
        fit,
        seconds,
        VariantScores(np.array(scores, np.float32), np.stack(maps)),
        maps[0].shape,
        own_bytes(model.model),
    )


def busy() -> str:
    """What to say of times where other work ran beside: a system has no more threads than there are cores."""
    return "times taken beside other work" if os.getloadavg()[0] > (os.cpu_count() or 1) + 0.5 else ""


def own_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model without the backbone, which ours leaves out too."""
    extractor = ("feature_extractor.", "feature_encoder.", "encoder.", "backbone.", "patch_exec.")
    return sum(t.numel() * t.element_size() for name, t in model.state_dict().items() if not name.startswith(extractor))


def write_table(arguments: argparse.Namespace) -> None:
    """One row for each system and part that was tried; of those that are not in this run, the rows there were."""
    rows = []
    for root in arguments.data:
        run = open_run(arguments, root)
        for category in run.dataset.categories:
            for name, system in SYSTEMS.items():
                path = cost_file(run, category, name)
                if not path.exists():
                    continue
                costs = json.loads(path.read_text())
                raw = raw_name(run, name)
                found: dict[str, Any] = dict.fromkeys((*METRICS, "input"), "")
                if "fit_s" in costs:
                    found = {key: round(100 * run.measure(category, raw)[key], 2) for key in METRICS}
                    found["input"] = "x".join(map(str, run.load(category, raw).size))
                rows.append(
                    {"system": name, "title": system.title, "backbone": system.backbone, "part": category, **found,
                     **{key: costs.get(key, "") for key in (*COSTS, "load")}, "note": costs["note"]}
                )  # fmt: skip
    done = {(row["system"], row["part"]) for row in rows}
    kept = [row for row in read_rows("peers") if (row["system"], row["part"]) not in done and row["system"] in SYSTEMS]
    order, parts = list(SYSTEMS), list(dict.fromkeys(row["part"] for row in [*rows, *kept]))
    rows = sorted([*rows, *kept], key=lambda row: (parts.index(row["part"]), order.index(row["system"])))
    print(f"wrote {write_rows('peers', rows)}")


if __name__ == "__main__":
    main()
