"""Run by `make wheel` in an environment that holds only the built wheel: the package as a user gets it."""

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import procon
import procon.demo.parts

REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> None:
    assert REPOSITORY / "src" not in Path(procon.__file__).parents, "the sources were imported, not the wheel"
    # Loaded on demand: the kernels for CUDA need its compiler, the service and the events of OPC UA their extras.
    optional = {
        ".cuda.neighbors": "triton",
        ".cuda.coreset": "triton",
        "procon.server.": "fastapi",
        "procon.line.opcua_events": "asyncua",
        "procon.bridges.": "anomalib",
    }
    for module in pkgutil.walk_packages(procon.__path__, "procon.", onerror=lambda _: None):
        if all(part not in module.name or find_spec(needed) for part, needed in optional.items()):
            importlib.import_module(module.name)
    for data in ("evaluation/paper/paper.json", "server/static/index.html"):
        assert (Path(procon.__file__).parent / data).is_file(), f"{data} is not in the wheel"
    command = [str(Path(sys.executable).parent / "procon")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = random_backbone(folder / "backbone")
        procon.demo.parts.write_set(folder / "parts", train=4, good=1, defects_per_kind=1, size=64)
        flags = [
            "--backbone",
            "dinov2-custom",
            "--weights",
            str(weights),
            "--image-size",
            "70",
            "--set",
            "layers=-1,-2",
        ]
        subprocess.run([*command, "fit", str(folder / "parts"), "-o", str(folder / "a.procon"), *flags], check=True)
        subprocess.run(
            [*command, "predict", str(folder / "a.procon"), str(folder / "parts"), "-o", str(folder / "out")],
            check=True,
        )
        if find_spec("fastapi") is None:
            refused = subprocess.run([*command, "serve", str(folder)], capture_output=True, text=True, check=False)
            assert refused.returncode == 2 and "pip install" in refused.stderr, refused.stderr
        assert (folder / "out" / "index.html").is_file()
        assert len((folder / "out" / "scores.csv").read_text().splitlines()) == 5
    sys.stdout.write("the installed package works\n")


def random_backbone(folder: Path) -> Path:
    """A random DINOv2 of two blocks as a Hugging Face folder."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
