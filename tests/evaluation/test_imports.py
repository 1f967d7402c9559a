"""`procon import`: labels of other tools become a folder that `procon check` finds nothing wrong with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from procon.errors import ConfigError, ImageError
from procon.evaluation.data.checks import check_folder
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.imports.coco_labels import annotation_mask, decode_rle, read_coco
from procon.evaluation.imports.folder import LabelledImage, Labels, write_category
from procon.evaluation.imports.lookout import read_lookout
from procon.progress import no_progress
from procon.results.coco import encode_rle
from procon.workspace import atomic_folder
from tests.conftest import Run

BUCKET = "s3://lookoutvision-us-east-1-0/line-3"
SCRATCH, DENT, WHITE = (44, 160, 44), (31, 119, 180), (255, 255, 255)
COLORS = {
    "0": {"class-name": "BACKGROUND", "hex-color": "#ffffff", "confidence": 0.0},
    "1": {"class-name": "scratch", "hex-color": "#2ca02c", "confidence": 0.0},
    "2": {"class-name": "dent", "hex-color": "#1f77b4", "confidence": 0.0},
}


def entry(image: str, label: str | None, mask: str | None = None, name: str = "anomaly-label") -> dict[str, Any]:
    """A line as the developer guide of Lookout for Vision shows it."""
    line: dict[str, Any] = {"source-ref": f"{BUCKET}/{image}"}
    if label is not None:
        line[name] = int(label == "anomaly")
        line[f"{name}-metadata"] = {
            "class-name": label,
            "creation-date": "2021-10-12T14:16:45.668",
            "human-annotated": "yes",
            "job-name": "labeling-job/classification-job",
            "type": "groundtruth/image-classification",
            "confidence": 1,
        }
    if mask is not None:
        line["anomaly-mask-ref"] = f"{BUCKET}/{mask}"
        line["anomaly-mask-ref-metadata"] = {
            "internal-color-map": COLORS,
            "type": "groundtruth/semantic-segmentation",
            "human-annotated": "yes",
            "creation-date": "2021-11-23T20:31:57.758889",
            "job-name": "labeling-job/segmentation-job",
        }
    return line


def write_manifest(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def grey(path: Path, level: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (level, level, level)).save(path)
    return path


def color_mask(path: Path, **boxes: tuple[tuple[int, int, int], tuple[int, int, int, int]]) -> None:
    """A mask on white; each box is left, top, right, bottom."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas = Image.new("RGB", (40, 30), WHITE)
    for color, box in boxes.values():
        canvas.paste(color, box)
    canvas.save(path)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A bucket as it was downloaded: the folder of the bucket is missing, its content is there."""
    root = tmp_path / "bucket"
    for index in range(5):
        grey(root / "line-3" / "normal" / f"{index}.png")
    for index in range(3):
        grey(root / "line-3" / "anomaly" / f"{index}.png", 200)
    color_mask(root / "masks" / "0.png", scratch=(SCRATCH, (2, 3, 12, 9)), dent=(DENT, (20, 20, 22, 22)))
    return root


def train_manifest(bucket: Path) -> Path:
    (bucket / "masks").rename(bucket / "line-3" / "masks")
    return write_manifest(
        bucket / "train.manifest",
        *(entry(f"normal/{index}.png", "normal", name="auto-label") for index in range(5)),
        entry("anomaly/0.png", "anomaly", "masks/0.png"),
        entry("anomaly/1.png", "anomaly"),
        entry("anomaly/2.png", None),
    )


def test_a_manifest_becomes_a_folder(run: Run, bucket: Path, tmp_path: Path) -> None:
    target = tmp_path / "part"
    code, out, err = run("import", "lookout", train_manifest(bucket), "-o", target, "--hold-out", 0.4)
    assert code == 0, err
    assert out.splitlines()[-1] == f"next: procon check {target}"
    assert "left out: 1 image without a label" in out
    report = check_folder(target)
    # An anomalous image without a mask is a problem that the check names.
    assert [problem.rpartition("/")[2] for problem in report.problems] == ["1.png: has no mask"]
    dataset = open_dataset(target)
    category = dataset.category(dataset.categories[0])
    assert [path.name for path in category.train] == ["0.png", "1.png", "3.png"]
    kinds = {(sample.kind, sample.path.name) for sample in category.test}
    assert kinds == {("good", "2.png"), ("good", "4.png"), ("scratch", "0.png"), ("anomaly", "1.png")}
    mask = next(sample.mask for sample in category.test if sample.mask is not None)
    expected = np.zeros((30, 40), np.bool_)
    expected[3:9, 2:12] = expected[20:22, 20:22] = True
    np.testing.assert_array_equal(read_mask(mask, (30, 40)), expected)
    assert (bucket / "line-3/normal/0.png").read_bytes() == (target / "train/good/0.png").read_bytes()


def test_test_manifests_and_links(run: Run, bucket: Path, tmp_path: Path) -> None:
    train = write_manifest(tmp_path / "train.manifest", *(entry(f"normal/{i}.png", "normal") for i in range(4)))
    test = write_manifest(
        tmp_path / "test.manifest", entry("normal/4.png", "normal"), entry("anomaly/2.png", "anomaly")
    )
    target = tmp_path / "part"
    code, _, err = run("import", "lookout", train, "--test", test, "--images", bucket, "--link", "-o", target)
    assert code == 0, err
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*.png")) == [
        "test/anomaly/2.png",
        "test/good/4.png",
        *(f"train/good/{index}.png" for index in range(4)),
    ]
    assert (target / "train/good/0.png").samefile(bucket / "line-3/normal/0.png")
    code, _, err = run("import", "lookout", train, "--images", bucket, "-o", target)
    assert (code, "empty or does not exist yet" in err) == (2, True)


def test_equal_names_keep_their_masks_apart(bucket: Path, tmp_path: Path) -> None:
    grey(bucket / "line-3" / "later" / "0.png", 180)
    color_mask(bucket / "line-3" / "later-mask.png", scratch=(SCRATCH, (0, 0, 4, 4)))
    color_mask(bucket / "line-3" / "mask.png", scratch=(SCRATCH, (8, 8, 20, 20)))
    manifest = write_manifest(
        bucket / "m",
        entry("normal/0.png", "normal"),
        entry("anomaly/0.png", "anomaly", "mask.png"),
        entry("later/0.png", "anomaly", "later-mask.png"),
    )
    write_category(tmp_path / "part", read_lookout(manifest, bucket), on_progress=no_progress)
    category = open_dataset(tmp_path / "part").category("part")
    areas = {s.path.name: int(read_mask(s.mask, (30, 40)).sum()) for s in category.test if s.mask is not None}
    assert areas == {"0.png": 144, "0-2.png": 16}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"source": "a"}, r"line 1: must be an object with source-ref"),
        (entry("normal/0.png", "broken"), "class-name must be normal or anomaly, got broken"),
        (entry("nowhere/a.png", "normal"), r"1 of 1 files are not in .*download them with their folders"),
        (entry("../../secret.png", "normal"), "paths must not lead upwards"),
        (
            entry("anomaly/0.png", "anomaly") | {"m-ref-metadata": {"type": "groundtruth/semantic-segmentation"}},
            "m-ref must be a path with an internal-color-map",
        ),
    ],
)
def test_manifests_that_do_not_fit_are_refused(bucket: Path, line: dict[str, Any], message: str) -> None:
    manifest = write_manifest(bucket / "m", line)
    with pytest.raises(ImageError, match=message):
        read_lookout(manifest, bucket)


def test_files_that_are_no_manifest_are_refused(bucket: Path) -> None:
    for content, message in ((b"{", "line 1: must be JSON"), (b"", "is empty"), (b"\xff\xfe", "another kind of file")):
        (bucket / "m").write_bytes(content)
        with pytest.raises(ImageError, match=message):
            read_lookout(bucket / "m", bucket)


def test_a_colour_outside_the_map_leaves_nothing(bucket: Path, tmp_path: Path) -> None:
    color_mask(bucket / "odd.png", odd=((1, 2, 3), (0, 0, 5, 5)))
    manifest = write_manifest(
        bucket / "m", entry("normal/0.png", "normal"), entry("anomaly/0.png", "anomaly", "odd.png")
    )
    with pytest.raises(ImageError, match=r"has the colour #010203, but .*#2ca02c \(scratch\)"):
        write_category(tmp_path / "part", read_lookout(manifest, bucket), on_progress=no_progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket"]


def test_an_image_is_listed_once_and_something_is_good(bucket: Path, tmp_path: Path) -> None:
    good = read_lookout(write_manifest(bucket / "m", entry("normal/0.png", "normal")), bucket)
    bad = read_lookout(write_manifest(bucket / "m", entry("anomaly/0.png", "anomaly")), bucket)
    with pytest.raises(ImageError, match=r"0\.png: is listed 2 times"):
        write_category(tmp_path / "part", good, good, on_progress=no_progress)
    with pytest.raises(ImageError, match="none of them is good"):
        write_category(tmp_path / "part", bad, good, on_progress=no_progress)
    with pytest.raises(ConfigError, match=r"--hold-out must be a share .*, got 1\.0"):
        write_category(tmp_path / "part", good, hold_out=1.0, on_progress=no_progress)
    odd = grey(bucket / "a.png").rename(bucket / "a.heic")
    with pytest.raises(ImageError, match=r"a\.heic: must be an image ending in"):
        write_category(
            tmp_path / "part", Labels((LabelledImage(odd, False, bad.images[0].read_label),)), on_progress=no_progress
        )
    assert not (tmp_path / "part").exists()


# -------------------------------------------------------------------------------------------------------------- COCO


def coco(*annotations: dict[str, Any], images: int = 3) -> dict[str, Any]:
    return {
        "images": [{"id": 10 + i, "file_name": f"{i}.png", "width": 40, "height": 30} for i in range(images)],
        "categories": [{"id": 1, "name": "scratch"}, {"id": 2, "name": "deep dent"}, {"id": 3, "name": "OK"}],
        "annotations": [{"id": number, **annotation} for number, annotation in enumerate(annotations)],
    }


def test_a_coco_file_becomes_a_folder(run: Run, tmp_path: Path) -> None:
    for index in range(4):
        grey(tmp_path / "images" / f"{index}.png")
    polygon = [[5, 5, 14, 5, 14, 9, 5, 9]]
    document = coco(
        {"image_id": 11, "category_id": 1, "segmentation": polygon, "bbox": [5, 5, 10, 5]},
        {"image_id": 11, "category_id": 2, "bbox": [20, 10, 2, 2]},
        {"image_id": 12, "category_id": 2, "segmentation": encode_rle(np.eye(30, 40, dtype=np.bool_))},
        {"image_id": 13, "category_id": 3, "bbox": [0, 0, 40, 30]},
        images=4,
    )
    (tmp_path / "labels.json").write_text(json.dumps(document))
    target = tmp_path / "part"
    code, out, err = run("import", "coco", tmp_path / "labels.json", "--images", tmp_path / "images", "-o", target)
    assert code == 0, err
    assert "test/scratch             1 image, 1 mask" in out
    assert "no good images to test with" in out
    assert check_folder(target).problems == ()
    category = open_dataset(target).category("part")
    assert [path.name for path in category.train] == ["0.png", "3.png"]
    masks = {sample.kind: read_mask(sample.mask, (30, 40)) for sample in category.test if sample.mask is not None}
    expected = np.zeros((30, 40), np.bool_)
    expected[5:10, 5:15] = expected[10:12, 20:22] = True
    np.testing.assert_array_equal(masks["scratch"], expected)
    np.testing.assert_array_equal(masks["deep dent"], np.eye(30, 40, dtype=np.bool_))


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_run_lengths_are_read_as_they_are_written(mask: Any) -> None:
    np.testing.assert_array_equal(decode_rle(encode_rle(mask), mask.shape), mask)


def test_run_lengths_of_pycocotools() -> None:
    # pycocotools.mask.encode(numpy.asfortranarray(mask)) of the mask below
    mask = np.zeros((30, 40), np.uint8)
    mask[3:20, 5:30], mask[10:12, 8:9] = 1, 0
    counts = "i4a0=0000FE1;90000000000000000000000000000000000000000Y9"
    np.testing.assert_array_equal(decode_rle({"size": [30, 40], "counts": counts}, (30, 40)), mask > 0)


@pytest.mark.parametrize("counts", [[2**63 - 1, 2**63 - 1, 18], [16, 2**70, -(2**70)], [1e300, 1], [-4, 20], []])
def test_run_lengths_beyond_the_image_are_refused_before_anything_is_written(counts: list[Any]) -> None:
    with pytest.raises(ValueError, match="do not fill an image of 4x4"):
        decode_rle({"size": [4, 4], "counts": counts}, (4, 4))


@pytest.mark.parametrize("number", ["-16", "1e999", "100000000000", "1e300", "0"])
def test_impossible_sizes_in_a_coco_file_are_refused(number: str, run: Run, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "a.png")
    image = f'{{"id": 1, "file_name": "a.png", "height": {number}, "width": 16}}'
    file = tmp_path / "l.json"
    file.write_text(f'{{"images": [{image}], "annotations": [], "categories": []}}')
    code, _, err = run("import", "coco", file, "-o", tmp_path / "part")
    assert code == 2 and "Traceback" not in err and "l.json: must be a COCO file" in err, err


@pytest.mark.parametrize("tool", ["coco", "lookout"])
def test_brackets_without_end_are_refused(tool: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text("[" * 200_000)
    code, _, err = run("import", tool, tmp_path / "l.json", "-o", tmp_path / "part")
    assert code == 2 and "Traceback" not in err and "error: " in err and len(err) < 500


def test_annotations_that_cannot_be_drawn_are_refused(run: Run, tmp_path: Path) -> None:
    for index in range(3):
        grey(tmp_path / f"{index}.png")
    wrong: list[dict[str, Any]] = [
        {"segmentation": {"size": [30, 40], "counts": [5, 5]}},
        {"segmentation": [[1, 2, 3]]},
        {"segmentation": []},
    ]
    for annotation in wrong:
        (tmp_path / "l.json").write_text(json.dumps(coco({"image_id": 11, "category_id": 1, **annotation})))
        code, _, err = run("import", "coco", tmp_path / "l.json", "-o", tmp_path / "part")
        assert code == 2
        assert "annotation 0 of" in err
        assert not (tmp_path / "part").exists()
    for text in ("[]", "{", '{"images": [], "annotations": [], "categories": []}'):
        (tmp_path / "l.json").write_text(text)
        with pytest.raises(ImageError, match=r"must be a COCO file|lists no images"):
            read_coco(tmp_path / "l.json", tmp_path)


def test_a_box_counts_where_there_is_no_segmentation() -> None:
    mask = annotation_mask({"bbox": [2, 3, 4, 5]}, (30, 40))
    assert mask.sum() == 20
    assert mask[3:8, 2:6].all()


def test_formats_and_paths_are_checked_first(run: Run, tmp_path: Path) -> None:
    for arguments, message in (
        (("yolo", tmp_path, "-o", "x"), "FORMAT must be lookout or coco, got 'yolo'"),
        (("coco", tmp_path / "none.json", "-o", "x"), "no such file of labels"),
    ):
        code, _, err = run("import", *arguments)
        assert (code, message in err) == (2, True)


# -------------------------------------------------------------------------------------------------- a folder, atomic


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "part"
    with atomic_folder(target) as work:
        (work / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    with pytest.raises(RuntimeError, match="stop"), atomic_folder(tmp_path / "other") as work:
        raise RuntimeError("stop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
