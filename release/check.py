"""Build a release, check it as a stranger would, and write what travels with it. Run by `make release-check`.

    python release/check.py [--tag v0.1.0] [--base-python python3.11]

It writes to dist/: the source archive, the wheel that is built from it, sbom.cdx.json (CycloneDX), licences.md and
SHA256SUMS. Each archive is installed in a new environment of its own, after torch, and used there.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import contents
import licences

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TORCH = "torch==2.13.0"  # the version that the tests use


def say(text: str) -> None:
    """Print a line at once: the steps take minutes."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command; what it printed is shown only if it fails."""
    # A path of the caller must not bring the sources into the environments under test.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def read_version() -> str:
    """The version of the package, from its source, without importing it."""
    for line in (ROOT / "src" / "procon" / "__init__.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise SystemExit("src/procon/__init__.py has no line __version__ = ...")


def check_names(version: str, tag: str | None, changelog: str) -> None:
    """Refuse a tag that is not the version, and a tagged version without its notes."""
    if tag is None:
        return
    if tag != f"v{version}":
        raise SystemExit(f"the tag must be v{version}, the version in src/procon/__init__.py. Got {tag}")
    if f"## [{version}]" not in changelog:
        raise SystemExit(f"CHANGELOG.md has no heading '## [{version}]': rename 'Unreleased' before the tag")


def build(version: str) -> tuple[Path, Path]:
    """The source archive, and the wheel made from it, with exactly the files they should have."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    sdist, wheel = DIST / f"procon-{version}.tar.gz", DIST / f"procon-{version}-py3-none-any.whl"
    tracked = contents.list_tracked_files(ROOT)
    wrong = contents.describe_difference(sdist.name, contents.read_sdist(sdist), contents.expect_sdist(tracked))
    wrong += contents.describe_difference(
        wheel.name, contents.read_wheel(wheel), contents.expect_wheel(tracked, version)
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def install(archive: Path, environment: Path, base_python: str) -> Path:
    """The Python of a new environment in which an archive is installed and has been used."""
    shutil.rmtree(environment, ignore_errors=True)
    run(base_python, "-m", "venv", environment)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, TORCH)
    run(*pip, archive)
    run(python, "-m", "pip", "check", "--disable-pip-version-check")
    run(python, ROOT / "tests" / "use_installed_package.py", cwd=DIST)
    return python


def write_documents(python: Path, archives: list[Path]) -> list[Path]:
    """The bill of materials, the licences and the digests."""
    bill, table, sums = DIST / "sbom.cdx.json", DIST / "licences.md", DIST / "SHA256SUMS"
    command = ["environment", "--output-reproducible", "--output-format", "JSON", "--output-file"]
    run(sys.executable, "-m", "cyclonedx_py", *command, bill, python)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    table.write_text(licences.render(licences.list_licences(Path(site))), encoding="utf-8")
    files = [*archives, bill, table]
    digests = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    sums.write_text("".join(digests), encoding="utf-8")
    return [*files, sums]


def main() -> None:
    """All steps, in order; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", default=None, help="refuse a release whose version is not this tag")
    parser.add_argument("--base-python", default=sys.executable, help="makes the new environments")
    given = parser.parse_args()
    version = read_version()
    check_names(version, given.tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    say(f"building procon {version}")
    archives = build(version)
    python = None
    for archive, kind in zip(archives, ("sdist", "wheel"), strict=True):
        say(f"installing {archive.name} in a new environment, and using it")
        python = install(archive, ROOT / ".venvs" / f"release-{kind}", given.base_python)
    assert python is not None
    for path in write_documents(python, list(archives)):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    say("this release could be published")


if __name__ == "__main__":
    main()
