"""Accuracy on MPDD against the figures a correct pipeline must reach.

    python benchmarks/mpdd.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

Prints our numbers beside the expected ones and writes ``benchmarks/results/mpdd.csv``. The expected figures were
measured with the same ViT-S/14 weights (the encoder of Depth Anything V2 Small) on 1024-pixel originals; copies at
other sizes may move P-AP and P-F1 of the brackets, whose defects are a few pixels, by two or three points.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from environment import write_rows
from procon import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.runs.run import Run, variant_name

COLUMNS = ("i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro", "pauroc30")
EXPECTED = {  # percent
    ("metal_plate", 0.01, "hard"): (100.00, 100.00, 100.00, 99.08, 95.03, 88.42, 95.44, 97.06),
    ("metal_plate", 0.01, "soft"): (100.00, 100.00, 100.00, 99.53, 97.02, 90.83, 97.07, 98.45),
    ("metal_plate", 0.05, "soft"): (100.00, 100.00, 100.00, 99.49, 96.77, 90.47, 97.01, 98.31),
    ("bracket_white", 0.01, "hard"): (100.00, 100.00, 100.00, 99.28, 14.28, 28.08, 90.84, 97.64),
    ("bracket_white", 0.01, "soft"): (100.00, 100.00, 100.00, 99.18, 10.99, 22.53, 90.09, 97.42),
    ("bracket_white", 0.05, "soft"): (100.00, 100.00, 100.00, 99.05, 12.98, 24.98, 88.38, 96.92),
    ("bracket_black", 0.01, "hard"): (85.31, 91.60, 80.95, 95.31, 15.04, 26.79, 90.17, 85.89),
    ("bracket_black", 0.01, "soft"): (84.51, 91.01, 80.95, 95.20, 14.45, 26.09, 91.11, 85.51),
    ("bracket_black", 0.05, "soft"): (91.16, 94.68, 87.50, 96.90, 16.28, 26.56, 93.94, 89.82),
    ("bracket_brown", 0.01, "hard"): (97.89, 98.51, 99.03, 87.25, 10.86, 17.76, 72.96, 63.09),
    ("bracket_brown", 0.01, "soft"): (97.29, 97.73, 99.03, 88.21, 10.22, 17.24, 77.55, 64.83),
    ("bracket_brown", 0.05, "soft"): (97.74, 98.34, 99.03, 86.83, 11.39, 17.89, 75.35, 62.05),
}
WITHIN = {"metal_plate": 0.7}  # points; the brackets get 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the MPDD categories in it")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--categories", nargs="+", default=list(dict.fromkeys(name for name, _, _ in EXPECTED)))
    parser.add_argument("--output", type=Path, help="folder for the raw results; a temporary one by default")
    arguments = parser.parse_args()
    rows, failures = [], 0
    print(f"{'':32}" + "".join(f"{name:>9}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        base = Config(backbone="dinov2-small", weights=arguments.weights)
        run = Run(arguments.output or Path(temporary), open_dataset(arguments.data), base)
        for category in arguments.categories:
            wanted = {
                key: replace(base, coreset_ratio=key[1], readout=key[2], banks=3)
                for key in EXPECTED
                if key[0] == category
            }
            run.compute(category, wanted.values(), torch.device("cpu"), lambda *_: None)
            listed = run.dataset.category(category)
            for (_, ratio, readout), config in wanted.items():
                measured = run.measure(category, variant_name(config))
                result = {name: round(100 * measured[name], 2) for name in COLUMNS}
                expected = EXPECTED[category, ratio, readout]
                limit = WITHIN.get(category, 3.0)
                ok = all(abs(result[name] - value) <= limit for name, value in zip(COLUMNS, expected, strict=True))
                failures += not ok
                name = f"{category} {ratio:.0%} {readout}"
                print(f"{name:32}" + "".join(f"{result[column]:9.2f}" for column in COLUMNS))
                verdict = f"within {limit}" if ok else f"NOT within {limit}"
                print(f"{'  expected, ' + verdict:32}" + "".join(f"{value:9.2f}" for value in expected), flush=True)
                rows.append(
                    {"category": category, "ratio": ratio, "readout": readout, **result}
                    | {"train": len(listed.train), "test": len(listed.test), "limit": limit, "ok": ok}
                    | {"backbone": "ViT-S/14 (Depth Anything V2)"}
                )
    print(f"wrote {write_rows('mpdd', rows)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
