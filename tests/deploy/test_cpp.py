"""examples/cpp scores as the Runtime does."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from procon import Detector
from procon.deploy.export import export
from tests.deploy.test_node import assert_as_runtime, write_images

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "cpp" / "score.cpp"
HEADERS = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime")


@pytest.fixture(scope="session")
def score(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled with the headers of the system or of PROCON_ONNXRUNTIME_INCLUDE and the library of pip."""
    includes = [os.environ.get("PROCON_ONNXRUNTIME_INCLUDE"), *HEADERS]
    include = next((place for place in includes if place and (Path(place) / "onnxruntime_cxx_api.h").is_file()), None)
    if shutil.which("g++") is None or include is None or not Path("/usr/include/nlohmann/json.hpp").is_file():
        pytest.skip("needs g++, and the packages libonnxruntime-dev and nlohmann-json3-dev of Debian")
    wheel = find_spec("onnxruntime")
    libraries = [] if wheel is None else sorted(Path(str(wheel.origin)).parent.glob("capi/libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("the installed onnxruntime has no library that C++ can be linked with")
    folder = tmp_path_factory.mktemp("cpp")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(libraries[0])
    options = ["-std=c++17", "-O1", "-Wall", f"-isystem{include}", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    command = ["g++", *options, str(SOURCE), "-lonnxruntime", "-o", str(folder / "score")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "score.cpp" not in done.stderr, done.stderr
    return folder / "score"


@pytest.mark.slow
def test_cpp_scores_as_the_runtime_does(detector: Detector, score: Path, tmp_path: Path) -> None:
    folder = export(detector, tmp_path / "part", measure_memory=False).folder
    images = write_images(tmp_path)
    frames = [path.with_suffix(".ppm") for path in images]
    for path, frame in zip(images, frames, strict=True):
        Image.open(path).convert("RGB").save(frame)
    done = subprocess.run([score, folder, *frames], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_as_runtime(done.stdout, folder, images)


@pytest.mark.slow
def test_cpp_says_what_is_wrong(detector: Detector, score: Path, tmp_path: Path) -> None:
    folder = export(detector, tmp_path / "part", measure_memory=False).folder
    (tmp_path / "cut.ppm").write_bytes(b"P6\n40 40\n255\n123")
    for arguments, said in (
        ([folder], "usage: score FOLDER IMAGE.ppm"),
        ([tmp_path, tmp_path / "cut.ppm"], "has no manifest.json; export a model into it"),
        ([folder, tmp_path / "cut.ppm"], "cut.ppm: has fewer pixels than its head says"),
        ([folder, folder / "manifest.json"], "expected a binary PPM"),
    ):
        done = subprocess.run([score, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stdout == "" and said in done.stderr
