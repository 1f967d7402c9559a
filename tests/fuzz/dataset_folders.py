"""Folders of data sets and files of labels: listed, or refused with a sentence."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.errors import ProconError
from procon.evaluation.data.checks import check_folder
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.imports.coco_labels import read_coco
from procon.evaluation.imports.folder import write_category
from procon.evaluation.imports.lookout import read_lookout
from procon.files import describe_os_error
from procon.progress import no_progress
from procon.vision.folders import inspection_images, list_images, training_images
from procon.vision.scope import roi_mask
from tests.fuzz.targets import Check, Source, Target, change_document

END = b"\n===\n"
"""Between files. The first line of each is its path, the rest its content: IMAGE, MASK, LINK target or the bytes."""
EDITS = b"edits"
"""An entry of this name changes the JSON of the files after it."""
_MOST_FILES, _LONGEST_NAME = 40, 255


def _picture(defect: bool) -> bytes:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[4:8, 4:8] = 255 if defect else 90
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _changed(text: bytes, source: Source) -> bytes:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(source.number(4)):
        change_document(document, source)
    return json.dumps(document).encode()


def build_tree(root: Path, data: bytes) -> None:
    """Write the files that ``data`` describes below ``root``, and nothing outside."""
    source = Source(b"")
    for entry in data.split(END)[:_MOST_FILES]:
        name, _, content = entry.partition(b"\n")
        if name == EDITS:
            source = Source(content)
            continue
        if name.endswith((b".json", b".manifest")) and source.left:
            content = b"\n".join(_changed(line, source) for line in content.split(b"\n"))
        parts = [
            part[:_LONGEST_NAME] for part in name.replace(b"\0", b"").split(b"/") if part not in (b"", b".", b"..")
        ]
        if not parts or len(parts) > 12:
            continue
        path = Path(root, *(os.fsdecode(part) for part in parts))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith(b"LINK "):
                path.symlink_to(os.fsdecode(content[5:].replace(b"\0", b"").replace(b"/", b"")[:_LONGEST_NAME] or b"x"))
            elif name.endswith(b"/"):
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes({b"IMAGE": _picture(False), b"MASK": _picture(True)}.get(content, content))
        except (OSError, ValueError):  # a file where a folder must be
            continue


def use_folder(folder: Path) -> None:
    """List and check ``folder`` as a data set."""
    check_folder(folder)
    dataset = open_dataset(folder)
    for name in dataset.categories:
        category = dataset.category(name)
        for sample in category.test:
            if sample.mask is not None:
                assert read_mask(sample.mask, (16, 16)).shape == (16, 16)


def use_labels(root: Path, file: Path, target: Path) -> None:
    """Read a file of labels, and write what it lists."""
    read = read_coco if file.suffix == ".json" else read_lookout
    write_category(target, read(file, root), on_progress=no_progress)


@contextmanager
def _open(folder: Path) -> Iterator[Check]:
    root, target = folder / "root", folder / "imported"

    def check(data: bytes) -> None:
        for path in (root, target):
            shutil.rmtree(path, ignore_errors=True)
        root.mkdir()
        build_tree(root, data)
        folders = [root, *(path for path in root.iterdir() if path.is_dir())][:2]
        labels = [path for path in sorted(root.iterdir()) if path.suffix in (".json", ".manifest") and path.is_file()]
        works: list[tuple[Callable[..., object], tuple[Any, ...]]] = [(use_folder, (place,)) for place in folders]
        works += [(training_images, (place,)) for place in folders]
        works += [(inspection_images, (place,)) for place in folders]
        works += [(use_labels, (root, file, target)) for file in labels[:2]]
        works += [(roi_mask, (path, [(16, 16)], (14, 14))) for path in list_images(root)[:1]]
        for work, arguments in works:
            try:
                work(*arguments)
            except ProconError as error:
                assert str(error)
            except OSError as error:  # commands print it as a sentence
                assert error.errno is not None and describe_os_error(error)

    yield check


def _tree(**files: str) -> bytes:
    return END.join(f"{path}\n{content}".encode() for path, content in files.items())


def _seeds() -> dict[str, bytes]:
    polygon = {"id": 1, "image_id": 2, "category_id": 1, "bbox": [4, 4, 4, 4], "segmentation": [[4, 4, 8, 4, 8, 8]]}
    runs = {"id": 2, "image_id": 2, "category_id": 2, "segmentation": {"size": [16, 16], "counts": [100, 20, 136]}}
    text_runs = {"id": 3, "image_id": 2, "category_id": 2, "segmentation": {"size": [16, 16], "counts": "`0\\0P8"}}
    coco = {
        "images": [
            {"id": 1, "file_name": "a.png", "height": 16, "width": 16},
            {"id": 2, "file_name": "b.png", "height": 16, "width": 16},
        ],
        "categories": [{"id": 1, "name": "scratch"}, {"id": 2, "name": "dent"}],
        "annotations": [polygon, runs, text_runs],
    }
    meta = {"type": "groundtruth/image-classification", "class-name": "anomaly"}
    colors = {
        "0": {"class-name": "BACKGROUND", "hex-color": "#5a5a5a"},
        "1": {"class-name": "x", "hex-color": "#fff000"},
    }
    mask = {"type": "groundtruth/semantic-segmentation", "internal-color-map": colors}
    good = {"source-ref": "s3://b/a.png", "l-metadata": {**meta, "class-name": "normal"}}
    bad = {"source-ref": "b.png", "l-metadata": meta, "m-ref": "m.png", "m-ref-metadata": mask}
    visa = "object,split,label,image,mask\ncandle,train,normal,a.png,\ncandle,test,anomaly,b.png,m.png"
    realiad = {
        "meta": {"prefix": "audiojack/", "normal_class": "OK"},
        "train": [{"image_path": "a.png", "anomaly_class": "OK"}],
        "test": [{"image_path": "b.png", "anomaly_class": "AK", "mask_path": "m.png"}],
    }
    return {
        "flat": _tree(**{"1.png": "IMAGE", "10.png": "IMAGE", "2.jpg": "not an image"}),
        "mvtec": _tree(**{
            "train/good/1.png": "IMAGE", "test/good/1.png": "IMAGE", "test/cut/1.png": "IMAGE",
            "ground_truth/cut/1_mask.png": "MASK", "ground_truth/dent/": "",
        }),
        "several": _tree(**{
            "a/train/good/1.png": "IMAGE", "a/test/x/1.png": "IMAGE", "bottle/train/good/1.png": "IMAGE",
        }),
        "good-bad": _tree(**{"good/1.png": "IMAGE", "bad/1.png": "IMAGE", "mask/1.png": "MASK"}),
        "btad": _tree(**{
            "01/train/ok/1.bmp": "IMAGE", "01/test/ko/1.bmp": "IMAGE", "01/ground_truth/ko/1.png": "MASK",
        }),
        "medical": _tree(**{
            "train/good/1.png": "IMAGE", "test/Ungood/img/1.png": "IMAGE", "test/Ungood/label/1.png": "MASK",
            "test/good/img/2.png": "IMAGE",
        }),
        "visa": _tree(**{"split_csv/1cls.csv": visa, "candle/Data/Images/Normal/a.png": "IMAGE", "b.png": "IMAGE"}),
        "realiad": _tree(**{
            "realiad_jsons/audiojack.json": json.dumps(realiad), "realiad_256/audiojack/a.png": "IMAGE",
            "realiad_256/audiojack/b.png": "IMAGE", "realiad_256/audiojack/m.png": "MASK",
        }),
        "coco": _tree(**{"labels.json": json.dumps(coco), "a.png": "IMAGE", "b.png": "IMAGE"}),
        "lookout": _tree(**{"l.manifest": f"{json.dumps(good)}\n{json.dumps(bad)}", "a.png": "IMAGE", "b.png": "IMAGE",
                            "m.png": "MASK"}),
        "edited-coco": _tree(**{"edits": "\x01\x09\x00\x17" * 8, "labels.json": json.dumps(coco), "a.png": "IMAGE",
                                "b.png": "IMAGE"}),
        "edited-lookout": _tree(**{
            "edits": "\x01\x03\x01\x17" * 8, "l.manifest": f"{json.dumps(good)}\n{json.dumps(bad)}",
            "a.png": "IMAGE", "b.png": "IMAGE", "m.png": "MASK",
        }),
        "edited-realiad": _tree(**{
            "edits": "\x01\x09\x00\x17" * 8, "realiad_jsons/audiojack.json": json.dumps(realiad),
            "realiad_256/audiojack/a.png": "IMAGE",
        }),
        "link": _tree(**{"1.png": "LINK 1.png", "2.png": "LINK 3.png", "good/": ""}),
    }  # fmt: skip


TARGET = Target(_open, _seeds, ())
