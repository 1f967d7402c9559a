"""Peak memory of a large fit, against what `procon fit` says beforehand. Writes ``benchmarks/results/memory.csv``.

    python benchmarks/memory.py [--images 2000]

Random features of that size (four layers of 512 dimensions) stand in for a backbone's; few anchors are picked, because
neither the peak nor the plan depends on how many picks are made one after another.
"""

import argparse
import resource
import sys
import time

import torch

from environment import write_rows
from procon import Config
from procon.method.projection import gaussian_matrix
from procon.model.selection import FeatureStore, build_layer
from procon.results.cost import fit_bytes, resident_bytes

PATCHES, DIMS = 784, [512] * 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--max-anchors", type=int, default=500)
    arguments = parser.parse_args()
    config = Config(max_anchors=arguments.max_anchors, banks=2)
    rows = arguments.images * PATCHES
    planned = resident_bytes() + fit_bytes(rows, DIMS, arguments.max_anchors, config)
    print(f"{arguments.images} images, {rows:,} patches; planned peak {planned / 2**30:.2f} GiB", flush=True)
    begin = time.perf_counter()
    base = torch.randn(24, DIMS[0], generator=torch.Generator().manual_seed(0))
    with FeatureStore(arguments.images, PATCHES, DIMS) as store:
        for image in range(0, arguments.images, 10):
            count = min(10, arguments.images - image)
            generator = torch.Generator().manual_seed(image)
            low = torch.randn(count, PATCHES, 24, generator=generator) @ base
            noise = torch.randn(count, PATCHES, DIMS[0], generator=generator)
            # Each layer gets its own noise without drawing it: what counts here is the size, not the values.
            layers = [low + 0.7 * noise.roll(layer, dims=2) for layer in range(len(DIMS))]
            store.put(image, [torch.nn.functional.normalize(layer, dim=2) for layer in layers])
        print(f"features written, on disk: {store.on_disk}, {time.perf_counter() - begin:.0f} s", flush=True)
        memories = []
        for layer in range(len(store)):
            selection = gaussian_matrix(DIMS[layer], config.selection_dim, config.seed, layer, 1)
            size = arguments.max_anchors
            memories.append(build_layer(store, layer, selection, size, config.bank_seeds, torch.device("cpu")))
            print(f"layer {layer}: {time.perf_counter() - begin:.0f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "images": arguments.images,
        "patches": rows,
        "layers": len(DIMS),
        "dims": DIMS[0],
        "banks": config.banks,
        "max_anchors": arguments.max_anchors,
        "planned_gib": round(planned / 2**30, 3),
        "peak_gib": round(peak / 2**30, 3),
        "ratio": round(planned / peak, 3),
        "seconds": round(time.perf_counter() - begin),
    }
    print(result)
    print(f"wrote {write_rows('memory', [result])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
