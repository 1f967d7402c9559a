"""A release: what its archives hold, the licences of its dependencies, and the workflow that would publish it."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import procon
from tests.docs.test_pages import load_script

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "release"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture(scope="module")
def contents() -> Any:
    return load_script(RELEASE / "contents.py")


@pytest.fixture(scope="module")
def licences() -> Any:
    return load_script(RELEASE / "licences.py")


@pytest.fixture(scope="module")
def check() -> Any:
    return load_script(RELEASE / "check.py")


def test_the_source_archive_holds_the_package_and_what_builds_it(contents: Any, tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist")
    if not (ROOT / ".git").exists():
        pytest.skip("which files belong to the package is known to git")
    path = Path(next(sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))))
    tracked = contents.list_tracked_files(ROOT)
    assert len(tracked) > 100
    found = {name for name in contents.read_sdist(path) if name in tracked or not name.startswith("src/")}
    assert contents.describe_difference(path.name, found, contents.expect_sdist(tracked)) == []


def test_missing_and_foreign_files_of_an_archive_are_named(contents: Any, tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "procon-1.0.whl", tmp_path / "procon-1.0.tar.gz"
    tracked = {"src/procon/__init__.py", "src/procon/a.py"}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in contents.expect_wheel(tracked, "1.0") - {"procon/a.py"} | {"tests/secret.txt"}:
            archive.writestr(name, "")
    (tmp_path / "a.py").touch()
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(tmp_path / "a.py", "procon-1.0/src/procon/a.py")
    assert contents.describe_difference("w", contents.read_wheel(wheel), contents.expect_wheel(tracked, "1.0")) == [
        "w lacks procon/a.py: is it excluded in pyproject.toml?",
        "w contains tests/secret.txt, which git does not track for the package",
    ]
    assert contents.read_sdist(sdist) == {"src/procon/a.py"}


def install(site: Path, name: str, *lines: str) -> None:
    """A package that has nothing but metadata."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    folder.joinpath("METADATA").write_text("\n".join([f"Name: {name}", "Version: 1.0", *lines, "", ""]))


def test_licences_are_read_from_metadata_and_silence_is_said(licences: Any, tmp_path: Path) -> None:
    install(
        tmp_path, "modern", "License-Expression: MIT", "Classifier: License :: OSI Approved :: Apache Software License"
    )
    install(tmp_path, "Older", "Classifier: License :: OSI Approved :: BSD License", "License: a | long\n  text")
    install(tmp_path, "oldest", "License: ISC  licence")
    install(tmp_path, "silent", "License: UNKNOWN")
    install(tmp_path, "whole-text", f"License: {'word ' * 100}")
    install(tmp_path, "pip", "License: MIT")
    rows = licences.list_licences(tmp_path)
    assert [(row.name, row.licence) for row in rows] == [
        ("modern", "MIT"),
        ("Older", "BSD License"),
        ("oldest", "ISC licence"),
        ("silent", licences.NOT_STATED),
        ("whole-text", licences.NOT_STATED),
    ]
    table = licences.render(rows)
    assert "| Older | 1.0 | BSD License |" in table
    assert table.endswith("so look at the source: silent, whole-text.\n")


def test_licences_of_this_environment_are_known(licences: Any) -> None:
    rows = {row.name: row.licence for row in licences.list_licences(Path(sys.modules["numpy"].__path__[0]).parent)}
    for name in ("torch", "numpy", "safetensors", "typer"):
        assert rows[name] != licences.NOT_STATED, name


def test_a_tag_must_be_the_version_and_have_its_notes(check: Any) -> None:
    assert check.read_version() == procon.__version__
    check.check_names("1.2.0", None, "")
    check.check_names("1.2.0", "v1.2.0", "## [1.2.0] - 2030-01-01")
    with pytest.raises(SystemExit, match=r"the tag must be v1\.2\.0, .* Got v1\.3\.0"):
        check.check_names("1.2.0", "v1.3.0", "## [1.2.0]")
    with pytest.raises(SystemExit, match="no heading"):
        check.check_names("1.2.0", "v1.2.0", "## [Unreleased]")


def test_the_torch_of_a_release_is_that_of_the_tests(check: Any) -> None:
    assert f"TORCH := {check.TORCH}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f" {check.TORCH}\n" in (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_only_the_step_that_publishes_may_sign_and_it_publishes_what_was_checked() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
    assert publish["needs"] == "check" and publish["environment"]
    uses = [step["uses"].partition("@")[0] for step in publish["steps"] if "uses" in step]
    assert uses[1:] == ["actions/attest-build-provenance", "actions/attest-sbom", "pypa/gh-action-pypi-publish"]
    assert publish["steps"][-1]["with"] == {"packages-dir": "upload", "attestations": True}
    assert "password" not in WORKFLOW.read_text(encoding="utf-8").partition("jobs:")[2]
    commands = [step["run"] for step in jobs["check"]["steps"] if "run" in step]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in [command.split()[1] for command in commands]:
        assert f"\n{target}:" in makefile


def test_the_container_serves_with_flags_that_exist() -> None:
    import typer

    from procon.cli import app

    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {flag for option in serve.params for flag in option.opts}
    command = yaml.safe_load(text.rpartition("CMD ")[2])
    assert command[0] == "serve" and {word for word in command if word.startswith("--")} <= flags
    port = next(option.default for option in serve.params if option.name == "port")
    assert f"EXPOSE {port}\n" in text


def test_pages_install_from_an_index_only_what_is_there() -> None:
    """Until the first release, `pip install procon` finds nothing; extras of an installed procon are found."""
    unreleased = "Nothing has been released yet" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "pip install" in line and unreleased:
                assert not re.search(r"pip install [^#`]*\bprocon(?![\w\[-])", line), f"{path.name}: {line}"
