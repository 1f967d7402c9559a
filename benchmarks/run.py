"""Every benchmark this machine can run, then the pages made from them: python benchmarks/run.py

The CPU and memory benchmarks need nothing else. Those on real images run when PROCON_REAL_DATA names a folder with
``mpdd`` in it and PROCON_REAL_WEIGHTS a ViT-S/14 file; the GPU one where there is CUDA.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> int:
    data, weights = os.environ.get("PROCON_REAL_DATA"), os.environ.get("PROCON_REAL_WEIGHTS")
    commands = [["benchmarks/cpu.py"], ["benchmarks/memory.py"], ["benchmarks/metrics.py"]]
    if data and weights:
        real = ["--data", str(Path(data) / "mpdd"), "--weights", weights]
        commands += [["benchmarks/compression.py", *real]]
        commands += [
            ["benchmarks/living_memory.py", *real],
            ["benchmarks/line.py", *real],
            ["docs/scripts/generate_line.py"],
        ]
        commands += [["benchmarks/mpdd.py", *real], ["benchmarks/reproduce.py", *real]]
        suspects = [str(Path(data) / "mpdd" / name) for name in ("metal_plate", "bracket_white")]
        commands += [["benchmarks/suspects.py", "--weights", weights, *suspects]]
    if torch.cuda.is_available():
        category = (
            ["--category", str(Path(data) / "mpdd" / "metal_plate"), "--weights", weights] if data and weights else []
        )
        commands += [["benchmarks/gpu.py", *category]]
    commands += [["docs/scripts/generate_benchmarks.py"]]
    failed = 0
    for command in commands:
        print("$ python", " ".join(command), flush=True)
        failed += subprocess.run([sys.executable, *command], cwd=HERE.parent, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
