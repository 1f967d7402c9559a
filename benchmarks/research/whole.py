"""Maps of a part from all of its training images, on two cores: unions of blocks and shares of the shift.

    PYTHONPATH=src:benchmarks python -m research.whole PART [PART ...] --data DATA --weights FILE

Tokens go to temporary files (fp16), so that memory holds one block of the training images at a time. Maps are judged at
672 pixels of the input. Writes ``benchmarks/results/whole.csv``; rows of other parts stay.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor

from environment import read_rows, write_rows
from procon.config import PATCH, Config
from procon.method.consensus import lower_quartile
from procon.model.selection import coreset_size
from procon.vision.backbone import Backbone
from procon.vision.framing import MEAN, STD, resample
from procon.vision.images import open_image
from research.judge import Judge, render
from research.study import pick
from research.tokens import Part, masks_of, open_part
from research.voters import search, soft_only

SIDE = 672
UNIONS = (
    ((-3, -7, -10), 0.02), ((-3, -7, -9, -10), 0.02), ((-3, -7, -9, -10), 0.015), ((-3, -9, -10), 0.02),
    ((-3, -6, -9, -10), 0.02),
)  # fmt: skip
SHARES = (0.0, 0.25, 0.5, 1.0)
BLUR = 4 * 392 / SIDE  # pixels of a map of side 392


def embed(part: Part, backbone: Backbone, folder: Path) -> dict[int, NDArray[np.float16]]:
    """Unit tokens [N, P, D] of training and test images, by block, in files."""
    rows, columns = part.grid(SIDE)
    paths = [*part.train, *(sample.path for sample in part.test)]
    shape = (len(paths), rows * columns, backbone.architecture.hidden)
    blocks = sorted({block for union, _ in UNIONS for block in union})
    stores = {block: open_memmap(folder / f"{block}.npy", "w+", np.float16, shape) for block in blocks}
    mean, spread = (torch.from_numpy(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    for number, path in enumerate(paths):
        pixels = resample(open_image(path).rgb8(), (rows * PATCH, columns * PATCH)).copy()
        inputs = (torch.from_numpy(pixels)[None].permute(0, 3, 1, 2).float() / 255 - mean) / spread
        for block, tokens in zip(blocks, backbone.tokens(inputs.contiguous()), strict=True):
            stores[block][number] = torch.nn.functional.normalize(tokens[0].float(), dim=1).half().numpy()
    return stores


def residuals(store: NDArray[np.float16], train: int, block: int, share: float, base: Config) -> Tensor:
    """Soft residuals [T, P] of the test images in one block."""
    good = torch.from_numpy(store[:train]).float().flatten(0, 1)
    (rows,) = pick(good, str(block), 12, coreset_size(len(good), share, 5, None), [1], base)
    anchors = good[rows].clone()
    del good
    parts = [torch.from_numpy(store[number : number + 8]).float() for number in range(train, len(store), 8)]
    return torch.cat([soft_only(patches, search(patches, anchors).rows, anchors) for patches in parts])


@torch.inference_mode()
def measure(part: Part, weights: str) -> Iterator[dict[str, Any]]:
    """A row for each union and share."""
    rows, columns = part.grid(SIDE)
    blocks = tuple(sorted({block for union, _ in UNIONS for block in union}))
    base = Config(backbone="dinov2-small", weights=weights, precision="bf16", layers=blocks,
                  image_size=(rows * PATCH, columns * PATCH))  # fmt: skip
    judge = Judge(masks_of(part, torch.device("cpu")))
    height, width = part.judged
    even = part.aspect == part.true_aspect
    blur = (BLUR * SIDE / 392,) * 2 if even else (BLUR * height / 392, BLUR * width / 392)
    with tempfile.TemporaryDirectory() as folder:
        stores = embed(part, Backbone.load(base, torch.device("cpu")), Path(folder))
        needed = sorted({(block, share) for union, share in UNIONS for block in union})
        soft = {(block, share): residuals(stores[block], len(part.train), block, share, base)
                for block, share in needed}  # fmt: skip
    for (union, ratio), share in product(UNIONS, SHARES):
        fused = torch.stack([soft[block, ratio] for block in union]).mean(0)
        shifted = (fused - share * lower_quartile(fused).unsqueeze(1)).view(-1, rows, columns)
        found = judge.measure(render(shifted, (height, width), blur))
        yield {"part": part.name, "train": len(part.train), "test": len(part.test), "layers": " ".join(map(str, union)),
               "ratio": ratio, "share": share, **{name: round(value, 2) for name, value in found.items()}}  # fmt: skip


def main() -> None:
    """Measure the parts and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    given = parser.parse_args()
    for name in given.parts:
        rows = list(measure(open_part(given.data, name, None, SIDE), given.weights))
        write_rows("whole", [*(row for row in read_rows("whole") if row["part"] != name), *rows])
        print(name, flush=True)


if __name__ == "__main__":
    main()
