"""What the archives of a release may contain: the tracked files of the package, and nothing else."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

# What `pip install` of the source archive needs besides the package; .gitignore is added by hatchling itself.
SDIST_FILES = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}


def list_tracked_files(root: Path) -> set[str]:
    """The files of the package that git tracks, relative to ``root``."""
    listed = subprocess.run(["git", "ls-files", "-z", "src"], cwd=root, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name}


def expect_sdist(tracked: set[str]) -> set[str]:
    """The files of a source archive whose package has the files ``tracked``."""
    return SDIST_FILES | tracked


def expect_wheel(tracked: set[str], version: str) -> set[str]:
    """The files of a wheel whose package has the files ``tracked``."""
    metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    return {name.removeprefix("src/") for name in tracked} | {f"procon-{version}.dist-info/{name}" for name in metadata}


def read_sdist(path: Path) -> set[str]:
    """The files of a source archive, relative to its one folder."""
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def read_wheel(path: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def describe_difference(name: str, found: set[str], expected: set[str]) -> list[str]:
    """What is missing in an archive and what is too much, a line each; empty if it is as expected."""
    missing = [f"{name} lacks {file}: is it excluded in pyproject.toml?" for file in sorted(expected - found)]
    foreign = [f"{name} contains {file}, which git does not track for the package" for file in sorted(found - expected)]
    return missing + foreign
