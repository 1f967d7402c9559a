"""Benchmarks in the trees their authors publish, in small; nothing is opened but masks."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image

from procon.errors import ConfigError, ImageError
from procon.evaluation.data.datasets import BENCHMARKS, Category, Sample, open_dataset, read_mask
from procon.evaluation.data.layouts import match_masks


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"never opened")
    return root


def mvtec_form(root: Path, *categories: str, kind: str = "dent", image: str = ".png") -> Path:
    for category in categories:
        write(root / category, f"train/good/000{image}", f"train/good/001{image}", f"test/good/000{image}")
        write(root / category, f"test/{kind}/000{image}", f"ground_truth/{kind}/000_mask.png")
    return root


def visa(root: Path, *categories: str, header: str = "object,split,label,image,mask") -> Path:
    lines = [header]
    for category in categories:
        images, masks = f"{category}/Data/Images", f"{category}/Data/Masks/Anomaly"
        write(root, f"{images}/Normal/0000.JPG", f"{images}/Normal/0001.JPG", f"{images}/Normal/0002.JPG")
        write(root, f"{images}/Anomaly/000.JPG", f"{masks}/000.png")
        lines += [
            f"{category},train,normal,{images}/Normal/0000.JPG,",
            f"{category},train,normal,{images}/Normal/0002.JPG,",
        ]
        lines += [f"{category},held-out,normal,{images}/Normal/0002.JPG,"]
        lines += [f"{category},test,normal,{images}/Normal/0001.JPG,"]
        lines += [f"{category},test,anomaly,{images}/Anomaly/000.JPG,{masks}/000.png"]
    (root / "split_csv").mkdir()
    (root / "split_csv" / "1cls.csv").write_text("\n".join(lines) + "\n")
    return root


def realiad(root: Path, *categories: str, jsons: str = "realiad_jsons", images: str = "realiad_1024") -> Path:
    (root / jsons).mkdir(parents=True)
    for category in categories:
        good = [f"OK/S000{part}/{category}_000{part}_OK_C1_20231022.jpg" for part in (1, 2)]
        bad = f"NG/AK/S0003/{category}_0003_NG_C1_20231022"
        write(root / images / category, *good, f"{bad}.jpg", f"{bad}_mask.png")
        items = [{"category": category, "anomaly_class": "OK", "image_path": path, "mask_path": None} for path in good]
        item = {"category": category, "anomaly_class": "AK", "image_path": f"{bad}.jpg", "mask_path": f"{bad}_mask.png"}
        content = {
            "meta": {"normal_class": "OK", "prefix": f"{category}/"},
            "train": items[:1],
            "test": [items[1], item],
        }
        (root / jsons / f"{category}.json").write_text(json.dumps(content))
    return root


def btad(root: Path) -> Path:
    for category, image, mask in (("01", "bmp", "png"), ("02", "png", "png"), ("03", "bmp", "bmp")):
        write(root / category, f"train/ok/0000.{image}", f"test/ok/0000.{image}", f"test/ko/0001.{image}")
        write(root / category, f"ground_truth/ko/0001.{mask}")
    return root


def names(root: Path, category: Category) -> tuple[list[str], list[tuple[str, str, str | None]]]:
    """(training images, (image, kind, mask)) with paths below ``root``."""
    train = [path.relative_to(root).as_posix() for path in category.train]
    test = [
        (
            sample.path.relative_to(root).as_posix(),
            sample.kind,
            sample.mask.relative_to(root).as_posix() if sample.mask else None,
        )
        for sample in category.test
    ]
    return train, test


# -------------------------------------------------------------------------------------------------------- benchmarks


def test_the_published_sets_are_complete() -> None:
    """The number of categories and images that the papers name."""
    assert {name: len(known.categories) for name, known in BENCHMARKS.items()} == {
        "mvtec": 15,
        "visa": 12,
        "realiad": 30,
        "mpdd": 6,
        "btad": 3,
        "medical": 3,
    }
    totals = {"mvtec": 5354, "visa": 10821, "realiad": 151050, "mpdd": 1346, "btad": 2540, "medical": 20352}
    assert {name: sum(known.counts) for name, known in BENCHMARKS.items()} == totals
    for known in BENCHMARKS.values():
        assert len(set(known.categories)) == len(known.categories)


@pytest.mark.parametrize(("name", "title"), [("mvtec", "MVTec-AD"), ("mpdd", "MPDD")])
def test_the_mvtec_form(tmp_path: Path, name: str, title: str) -> None:
    categories = BENCHMARKS[name].categories
    mvtec_form(tmp_path, *reversed(categories[1:]))
    write(tmp_path, "license.txt", ".cache/train/good/0.png")
    dataset = open_dataset(tmp_path)
    assert (dataset.name, dataset.title, dataset.root) == (name, title, tmp_path)
    assert dataset.categories == categories[1:], "published order"
    assert dataset.missing == categories[:1]
    for category in dataset.categories:
        assert names(tmp_path / category, dataset.category(category)) == (
            ["train/good/000.png", "train/good/001.png"],
            [("test/dent/000.png", "dent", "ground_truth/dent/000_mask.png"), ("test/good/000.png", "good", None)],
        )
        assert dataset.category(category).orphans == ()
    assert [sample.defective for sample in dataset.category(categories[1]).test] == [True, False]


def test_categories_are_listed_when_asked_for(tmp_path: Path) -> None:
    dataset = open_dataset(mvtec_form(tmp_path, "bottle"))
    write(tmp_path, "bottle/train/good/002.png")
    assert len(dataset.category("bottle").train) == 3


def test_visa_as_published(tmp_path: Path) -> None:
    root = visa(tmp_path, "candle", "pipe_fryum")
    dataset = open_dataset(root)
    assert (dataset.name, dataset.title, dataset.split) == ("visa", "VisA", "split_csv/1cls.csv")
    assert dataset.categories == ("candle", "pipe_fryum")
    assert len(dataset.missing) == 10
    assert names(root / "candle", dataset.category("candle")) == (
        ["Data/Images/Normal/0000.JPG", "Data/Images/Normal/0002.JPG"],
        [
            ("Data/Images/Normal/0001.JPG", "good", None),
            ("Data/Images/Anomaly/000.JPG", "anomaly", "Data/Masks/Anomaly/000.png"),
        ],
    )
    write(root, "candle/Data/Masks/Anomaly/001.png")
    assert dataset.category("candle").orphans == (root / "candle/Data/Masks/Anomaly/001.png",)


@pytest.mark.parametrize("inner", ["", "1cls"])
def test_visa_converted(tmp_path: Path, inner: str) -> None:
    top = tmp_path / inner
    for category in BENCHMARKS["visa"].categories:
        write(
            top / category, "train/good/0000.JPG", "test/good/0001.JPG", "test/bad/000.JPG", "ground_truth/bad/000.png"
        )
    dataset = open_dataset(tmp_path)
    assert (dataset.name, dataset.missing, dataset.split) == ("visa", (), "1cls, converted")
    assert names(top / "pcb4", dataset.category("pcb4")) == (
        ["train/good/0000.JPG"],
        [("test/bad/000.JPG", "bad", "ground_truth/bad/000.png"), ("test/good/0001.JPG", "good", None)],
    )


def test_visa_without_its_split(tmp_path: Path) -> None:
    write(tmp_path, "candle/Data/Images/Normal/0000.JPG")
    text = f"{tmp_path}: is VisA without its split; expected split_csv/1cls.csv, unpack the archive again"
    for name in (None, "visa"):
        with pytest.raises(ImageError) as caught:
            open_dataset(tmp_path, name)
        assert str(caught.value) == text


def test_visa_with_a_damaged_split(tmp_path: Path) -> None:
    dataset = open_dataset(visa(tmp_path, "candle", header="object,set,label,image"))
    with pytest.raises(ImageError, match=r"1cls\.csv: must have the columns object, .*; lacks mask, split"):
        dataset.category("candle")
    (tmp_path / "split_csv/1cls.csv").write_bytes(b"object,split\xff\xfe")
    with pytest.raises(ImageError, match=r"1cls\.csv: cannot be read \(.*\); unpack the archive again"):
        dataset.category("candle")


@pytest.mark.parametrize("jsons", ["realiad_jsons", "realiad_jsons/realiad_jsons"])
@pytest.mark.parametrize("images", ["realiad_1024", "realiad_512", "realiad_256", "."])
def test_realiad(tmp_path: Path, jsons: str, images: str) -> None:
    root = realiad(tmp_path / "Real-IAD", "zipper", "audiojack", jsons=jsons, images=images)
    dataset = open_dataset(root)
    assert (dataset.name, dataset.title) == ("realiad", "Real-IAD")
    assert dataset.split == f"realiad_jsons, images of {images if images != '.' else 'Real-IAD'}"
    assert dataset.categories == ("audiojack", "zipper")
    assert len(dataset.missing) == 28
    bad = "NG/AK/S0003/zipper_0003_NG_C1_20231022"
    assert names(root / images / "zipper", dataset.category("zipper")) == (
        ["OK/S0001/zipper_0001_OK_C1_20231022.jpg"],
        [("OK/S0002/zipper_0002_OK_C1_20231022.jpg", "good", None), (f"{bad}.jpg", "AK", f"{bad}_mask.png")],
    )


def test_realiad_goes_by_its_meta(tmp_path: Path) -> None:
    """What counts as normal is said in the file; a prefix that is not there is the category's folder."""
    root = realiad(tmp_path, "toy")
    path = root / "realiad_jsons" / "toy.json"
    text = path.read_text().replace('"OK"', '"fine"').replace('"toy/"', '"elsewhere/"')
    path.write_text(text)
    category = open_dataset(root).category("toy")
    assert [sample.kind for sample in category.test] == ["good", "AK"]
    assert all(sample.path.is_file() for sample in category.test)


def test_realiad_takes_the_size_that_has_most_categories_then_the_largest(tmp_path: Path) -> None:
    realiad(tmp_path, "audiojack", "zipper", images="realiad_256")
    write(tmp_path, "realiad_1024/audiojack/OK/S0001/a.jpg")
    assert open_dataset(tmp_path).split == "realiad_jsons, images of realiad_256"
    write(tmp_path, "realiad_1024/zipper/OK/S0001/a.jpg")
    assert open_dataset(tmp_path).split == "realiad_jsons, images of realiad_1024"


def test_realiad_never_takes_another_split_silently(tmp_path: Path) -> None:
    realiad(tmp_path, "audiojack", jsons="realiad_jsons_sv")
    with pytest.raises(ImageError) as caught:
        open_dataset(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: is Real-IAD without its split; expected realiad_jsons/<category>.json from realiad_jsons.zip, "
        "found realiad_1024, realiad_jsons_sv"
    )


def test_realiad_without_images(tmp_path: Path) -> None:
    realiad(tmp_path, "audiojack")
    (tmp_path / "realiad_1024").rename(tmp_path / "unpacked")
    with pytest.raises(ImageError, match=r"is Real-IAD without images; expected realiad_1024/<category>, .* unpacked"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"meta": {}, "train": [{}], "test": []}', '{"meta": 3}', "\x00"])
def test_realiad_with_a_damaged_split(tmp_path: Path, text: str) -> None:
    dataset = open_dataset(realiad(tmp_path, "audiojack"))
    (tmp_path / "realiad_jsons/audiojack.json").write_text(text)
    with pytest.raises(
        ImageError, match=r"audiojack\.json: must be a split file of Real-IAD with meta, train and test"
    ):
        dataset.category("audiojack")


@pytest.mark.parametrize("inner", ["", "BTech_Dataset_transformed"])
def test_btad(tmp_path: Path, inner: str) -> None:
    btad(tmp_path / inner)
    dataset = open_dataset(tmp_path)
    assert (dataset.name, dataset.title, dataset.categories, dataset.missing) == (
        "btad",
        "BTAD",
        ("01", "02", "03"),
        (),
    )
    for category, image, mask in (("01", "bmp", "png"), ("02", "png", "png"), ("03", "bmp", "bmp")):
        assert names(tmp_path / inner / category, dataset.category(category)) == (
            [f"train/ok/0000.{image}"],
            [(f"test/ko/0001.{image}", "ko", f"ground_truth/ko/0001.{mask}"), (f"test/ok/0000.{image}", "good", None)],
        )


# As the archives of BMAD unpack: each of the three has a form of its own, and later releases are like the first.
MEDICAL: dict[str, tuple[str, str, str, str]] = {
    "Brain_AD": ("train/good", "test/good/img", "test/Ungood/img", "test/Ungood/label"),
    "Brain_AD/BraTS2021_slice": ("train/good/img", "test/good/img", "test/Ungood/img", "test/Ungood/label"),
    "brain": ("train/good", "test/good/img", "test/ungood/img", "test/ungood/label"),
    "Liver_AD": ("train/good", "test/good/img", "test/Ungood/img", "test/Ungood/anomaly_mask"),
    "Liver_AD/hist_DIY": ("train/good", "test/img/good", "test/img/Ungood", "test/label/Ungood"),
    "Retina_RESC_AD/RESC": ("Train/train/good", "Test/test/good", "Test/test/Ungood", "Test/test_label/Ungood"),
    "Retina_RESC": ("train/good", "test/good/img", "test/Ungood/img", "test/Ungood/label"),
    "RESC": ("train/good", "test/good/img", "test/Ungood/img", "test/Ungood/label"),
}


@pytest.mark.parametrize("folder", MEDICAL)
def test_uni_medical(tmp_path: Path, folder: str) -> None:
    train, good, bad, masks = MEDICAL[folder]
    top = tmp_path / folder
    write(top, f"{train}/00003_60.png", f"{good}/00000_96.png", f"{bad}/00002_60.png", f"{masks}/00002_60.png")
    write(top, f"{good.replace('img', 'label').replace('/test/', '/test_label/')}/00000_96.png")  # empty labels of good
    write(top, "valid/good/img/00025_99.png", "valid/Ungood/img/00124_60.png", "valid/Ungood/label/00124_60.png")
    dataset = open_dataset(tmp_path)
    assert (dataset.name, dataset.title) == ("medical", "Uni-Medical")
    (name,) = dataset.categories
    assert name == {"B": "brain", "L": "liver", "R": "retina-RESC"}[folder[0].upper()]
    assert set(dataset.missing) | {name} == {"brain", "liver", "retina-RESC"}
    category = dataset.category(name)
    assert names(top, category) == (
        [f"{train}/00003_60.png"],
        [(f"{good}/00000_96.png", "good", None), (f"{bad}/00002_60.png", "Ungood", f"{masks}/00002_60.png")],
    )
    assert category.orphans == ()


def test_uni_medical_in_the_mvtec_form(tmp_path: Path) -> None:
    dataset = open_dataset(mvtec_form(tmp_path, "brain", "liver", "retinal", kind="Ungood"))
    assert (dataset.name, dataset.categories) == ("medical", ("brain", "liver", "retina-RESC"))
    assert dataset.category("retina-RESC").test[0].path == tmp_path / "retinal/test/Ungood/000.png"


# ----------------------------------------------------------------------------------------------------------- folders


def test_one_category(tmp_path: Path) -> None:
    dataset = open_dataset(mvtec_form(tmp_path, "bottle") / "bottle")
    assert (dataset.name, dataset.title, dataset.categories, dataset.missing) == ("folder", "bottle", ("bottle",), ())
    assert len(dataset.category("bottle").train) == 2


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (btad, "03"),
        (lambda root: visa(root, "candle", "pcb1"), "candle"),
        (lambda root: realiad(root, "zipper", "toy"), "realiad_1024/zipper"),
        (lambda root: realiad(root, "zipper", jsons="realiad_jsons/realiad_jsons"), "realiad_1024/zipper"),
    ],
)
def test_one_category_of_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], Path], path: str
) -> None:
    whole = open_dataset(build(tmp_path))
    name = Path(path).name
    dataset = open_dataset(tmp_path / path)
    assert (dataset.name, dataset.title, dataset.categories, dataset.missing) == ("folder", name, (name,), ())
    assert dataset.split == whole.split
    assert dataset.category(name) == whole.category(name)
    monkeypatch.chdir(tmp_path / path)
    assert open_dataset(Path()).categories == (name,)


def test_one_category_of_realiad_keeps_the_size_asked_for(tmp_path: Path) -> None:
    realiad(tmp_path, "zipper", images="realiad_256")
    write(tmp_path, "realiad_1024/zipper/OK/S0001/a.jpg")
    dataset = open_dataset(tmp_path / "realiad_256/zipper")
    assert dataset.split == "realiad_jsons, images of realiad_256"
    assert all((tmp_path / "realiad_256") in path.parents for path in dataset.category("zipper").train)


def test_good_bad_mask(tmp_path: Path) -> None:
    root = write(tmp_path / "part", "good/1.png", "good/2.png", "bad/7.PNG", "bad/8.png", "mask/7.png")
    dataset = open_dataset(root)
    assert (dataset.name, dataset.categories) == ("folder", ("part",))
    assert names(root, dataset.category("part")) == (
        ["good/1.png", "good/2.png"],
        [("bad/7.PNG", "bad", "mask/7.png"), ("bad/8.png", "bad", None)],
    )


def test_several_categories_that_nobody_published(tmp_path: Path) -> None:
    mvtec_form(tmp_path, "nut", "bolt")
    write(tmp_path, "notes/readme.txt", "pictures/a.png")
    dataset = open_dataset(tmp_path)
    assert (dataset.name, dataset.title, dataset.categories) == ("folder", tmp_path.name, ("bolt", "nut"))
    assert len(dataset.category("nut").test) == 2


def test_a_published_category_among_others_is_not_the_benchmark(tmp_path: Path) -> None:
    mvtec_form(tmp_path, "screw", "my_screw")
    assert open_dataset(tmp_path).name == "folder"
    named = open_dataset(tmp_path, "mvtec")
    assert (named.name, named.categories) == ("mvtec", ("screw",))
    whole = open_dataset(tmp_path, "folder")
    assert (whole.name, whole.categories) == ("folder", ("my_screw", "screw"))


def test_a_dataset_can_be_sent_to_another_process(tmp_path: Path) -> None:
    for dataset in (open_dataset(btad(tmp_path / "a")), open_dataset(visa(tmp_path / "b", "candle"))):
        again = pickle.loads(pickle.dumps(dataset))
        assert again == dataset
        assert again.category(dataset.categories[0]) == dataset.category(dataset.categories[0])


# ------------------------------------------------------------------------------------------------------------ errors


def test_unknown_and_missing_categories(tmp_path: Path) -> None:
    dataset = open_dataset(mvtec_form(tmp_path, "bottle", "cable"))
    with pytest.raises(ConfigError) as caught:
        dataset.category("botle")
    assert str(caught.value) == "category must be one of bottle, cable, got 'botle'"
    with pytest.raises(ConfigError) as caught:
        dataset.category("wood")
    assert str(caught.value) == f"category wood of MVTec-AD is not in {tmp_path}; get it, or leave it out"


def test_unknown_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_dataset(tmp_path, "mvtec-ad")
    text = "dataset must be one of mvtec, visa, realiad, mpdd, btad, medical, folder, got 'mvtec-ad'"
    assert str(caught.value) == text


@pytest.mark.parametrize("name", BENCHMARKS)
def test_another_dataset_than_named(tmp_path: Path, name: str) -> None:
    mvtec_form(tmp_path, "bolt")
    with pytest.raises(ImageError) as caught:
        open_dataset(tmp_path, name)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}: is not {BENCHMARKS[name].title}; expected ")
    assert text.endswith(", or others of its categories, found the folders bolt")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "found neither folders nor images"),
        (["a.png", "b.png", "c.txt"], "found 2 images and no folders"),
        ([f"line{line}/a.png" for line in range(6)], "found the folders line0, line1, line2, line3, line4, ..."),
        (["part/test/good/a.png", "part/test/dent/a.png"], "found the folders part"),
        (["test/good/a.png", "test/dent/a.png"], "found the folders test"),
    ],
)
def test_no_dataset(tmp_path: Path, files: list[str], found: str) -> None:
    write(tmp_path, *files)
    for name in (None, "folder"):
        with pytest.raises(ImageError) as caught:
            open_dataset(tmp_path, name)
        assert str(caught.value) == (
            f"{tmp_path}: is no dataset; expected MVTec-AD, VisA, Real-IAD, MPDD, BTAD, Uni-Medical, a category with "
            f"train/good and test/<kind> in it, good/ bad/ mask/, or a folder of such categories, {found}"
        )


def test_no_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.png")
    with pytest.raises(ImageError, match="b: no such folder; check the path"):
        open_dataset(tmp_path / "b")
    with pytest.raises(ImageError, match=r"a\.png: is a file where the folder of a dataset was expected"):
        open_dataset(tmp_path / "a.png")


# ------------------------------------------------------------------------------------------------------------- masks


def test_masks_are_matched_by_name(tmp_path: Path) -> None:
    images = [tmp_path / name for name in ("1.png", "2.bmp", "3.JPG", "4.png", "10.png")]
    masks = [tmp_path / "m" / name for name in ("10_mask.png", "1_mask.png", "2_gt.PNG", "3.png", "40.png")]
    assert match_masks(images, masks) == [masks[1], masks[2], masks[3], None, masks[0]]


def test_orphans_are_kept(tmp_path: Path) -> None:
    write(
        tmp_path, "train/good/0.png", "test/dent/0.png", "ground_truth/dent/0_mask.png", "ground_truth/dent/1_mask.png"
    )
    write(tmp_path, "ground_truth/hole/0_mask.png", "ground_truth/good/0_mask.png")
    category = open_dataset(tmp_path).category(tmp_path.name)
    assert category.test == (Sample(tmp_path / "test/dent/0.png", "dent", tmp_path / "ground_truth/dent/0_mask.png"),)
    assert category.orphans == (tmp_path / "ground_truth/dent/1_mask.png", tmp_path / "ground_truth/hole/0_mask.png")


def save(path: Path, pixels: NDArray[np.generic], mode: str | None = None) -> Path:
    Image.fromarray(pixels, mode).save(path) if mode else Image.fromarray(pixels).save(path)
    return path


@given(arrays(np.uint8, (15, 17), elements=st.sampled_from([0, 1, 3, 127, 128, 200, 255])))
def test_grey_masks(tmp_path_factory: pytest.TempPathFactory, pixels: NDArray[np.uint8]) -> None:
    path = save(tmp_path_factory.mktemp("masks") / "m.png", pixels)
    expected = np.zeros(pixels.shape, bool)
    for y, x in np.ndindex(*pixels.shape):
        expected[y, x] = pixels[y, x] > (127 if pixels.max() >= 128 else 0)
    assert (read_mask(path, (15, 17)) == expected).all()


SQUARE = np.zeros((20, 16), bool)
SQUARE[3:9, 5:14] = True


def palette(path: Path, colours: list[int], indices: NDArray[np.uint8]) -> None:
    image = Image.fromarray(indices)
    image.putpalette(colours)
    assert image.mode == "P"
    image.save(path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "binary.png": lambda path: save(path, SQUARE),
    "grey.bmp": lambda path: save(path, SQUARE * np.uint8(255)),
    "classes.png": lambda path: save(path, SQUARE * np.uint8(4)),
    "deep.png": lambda path: save(path, SQUARE * np.uint16(65_535)),
    "deep-edges.png": lambda path: save(path, np.where(SQUARE, 40_000, 20_000).astype(np.uint16)),
    "deep-classes.png": lambda path: save(path, SQUARE * np.uint16(2)),
    "deep-grey.png": lambda path: save(path, SQUARE * np.uint16(255)),
    "red.png": lambda path: save(path, SQUARE[:, :, None] * np.array([255, 0, 0], np.uint8)),
    "transparent.png": lambda path: save(path, np.dstack([np.full((20, 16, 3), 255), SQUARE * 255]).astype(np.uint8)),
    "inverted-palette.png": lambda path: palette(path, [255, 255, 255, 0, 0, 0], (~SQUARE).astype(np.uint8)),
    "noisy.jpg": lambda path: Image.fromarray(SQUARE * np.uint8(255)).save(path, quality=98),
}


@pytest.mark.parametrize("name", WRITERS)
def test_masks_as_people_write_them(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    mask = read_mask(tmp_path / name, (20, 16))
    assert mask.dtype == np.bool_
    assert (mask == SQUARE).all()


def test_class_numbers_in_a_palette_of_colours(tmp_path: Path) -> None:
    """Class 8 of the usual colour map is dark red and class 15 is bright: both are defects."""
    indices = np.zeros((20, 16), np.uint8)
    indices[3:9, 5:9], indices[3:9, 9:14] = 8, 15
    colours = [0] * 48
    colours[3 * 8 : 3 * 8 + 3], colours[3 * 15 : 3 * 15 + 3] = [64, 0, 0], [192, 128, 128]
    palette(tmp_path / "m.png", colours, indices)
    assert (read_mask(tmp_path / "m.png", (20, 16)) == SQUARE).all()


@given(st.integers(1, 60), st.integers(1, 60))
def test_masks_are_resized_to_the_nearest_pixel(
    tmp_path_factory: pytest.TempPathFactory, height: int, width: int
) -> None:
    random = np.random.default_rng(0).random((20, 16)) > 0.5
    path = save(tmp_path_factory.mktemp("masks") / "m.png", random)
    mask = read_mask(path, (height, width))
    assert mask.shape == (height, width)
    for y, x in np.ndindex(height, width):
        # The centre of a pixel of the new size lies in one pixel of the old, or on an edge between two.
        rows = {int((y + 0.5) * 20 / height - shift) for shift in (1e-9, -1e-9)}
        columns = {int((x + 0.5) * 16 / width - shift) for shift in (1e-9, -1e-9)}
        assert mask[y, x] in {random[row, column] for row in rows for column in columns}


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), (b"", "is empty"), (b"text", "is not an image"), (b"\x89PNG\r\n\x1a\n", "m.png: is ")],
)
def test_a_bad_mask_names_its_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "m.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=words) as caught:
        read_mask(path, (20, 16))
    assert str(caught.value).startswith(f"{path}: ")
