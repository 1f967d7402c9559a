"""Names of files as text, and atomic writes."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procon.errors import OutputError, ProconError
from procon.files import atomic_path, atomic_text, write_bytes, write_text
from procon.names import original_name, show_name

SHOWN = {
    b"part 1.png": "part 1.png",
    "Müller/日本\u3000語 😀.png".encode(): "Müller/日本\u3000語 😀.png",
    b"caf\xe9.png": r"caf\xe9.png",
    b"line\nbreak\tand \x1b[31m red.png": r"line\x0abreak\x09and \x1b[31m red.png",
    "gnp.\u202egnp".encode(): r"gnp.\u202egnp",
    "zero\u200bwidth\ufeff.png".encode(): r"zero\u200bwidth\ufeff.png",
    "c1\u0085next \u2028 line.png".encode(): r"c1\u0085next \u2028 line.png",
    "tag\U000e0041.png".encode(): r"tag\U000e0041.png",
    rb"C:\parts\new.png": r"C:\parts\new.png",
    rb"literal \x41 and \u0041.png": r"literal \x5cx41 and \x5cu0041.png",
    rb"\x5cx41": r"\x5cx5cx41",
}


@pytest.mark.parametrize("name", SHOWN)
def test_names_are_shown_without_what_cannot_be_seen(name: bytes) -> None:
    assert show_name(os.fsdecode(name)) == show_name(Path(os.fsdecode(name))) == SHOWN[name]
    assert os.fsencode(original_name(SHOWN[name])) == name


@given(st.one_of(st.binary(), st.text(alphabet="\\xuU05ceAF\n\u202e\udc80a").map(os.fsencode)))
def test_every_name_has_a_text_of_its_own_that_can_be_printed(name: bytes) -> None:
    shown = show_name(os.fsdecode(name))
    assert os.fsencode(original_name(shown)) == name
    shown.encode()
    assert all(character.isprintable() or character.isspace() for character in shown)
    assert "\n" not in shown and "\r" not in shown and "\x85" not in shown


# ------------------------------------------------------------------------------------------------------ atomic writes


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127, os.fsdecode(b"\xff" * 255), "line\nbreak"])
def test_every_name_that_the_system_allows_can_be_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "old")
    with atomic_text(tmp_path / name) as stream:
        stream.write("new")
        assert (tmp_path / name).read_text() == "old"
    assert (tmp_path / name).read_text() == "new"
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]  # noqa: PTH208 - names as bytes


def test_what_utf8_cannot_encode_is_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "caf\udce9 é\r\n")
    with atomic_text(tmp_path / "b.txt") as stream:
        stream.write("caf\udce9 é\r\n")
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes() == r"caf\udce9 é".encode() + b"\r\n"


def write(path: Path) -> None:
    write_bytes(path, b"new")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    for path in (tmp_path / ("a" * 256), tmp_path / "/".join(["b" * 200] * 30), Path("c" * 5000)):
        with pytest.raises(OutputError, match=r": the name is too long; most disks allow 255 bytes") as caught:
            write(path)
        assert caught.value.errno == errno.ENAMETOOLONG
        assert str(caught.value).startswith(str(path)[:500])


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    for path, reason in (
        (tmp_path / "file" / "a.png", "part of this path is a file where a folder was expected; check the path"),
        (tmp_path / "file" / "b" / "a.png", "part of this path is a file where a folder was expected; check the path"),
        (tmp_path / "folder", "is a folder where a file was expected; check the path"),
    ):
        with pytest.raises(OutputError) as caught:
            write(path)
        assert str(caught.value) == f"{path}: {reason}"
        assert isinstance(caught.value, ProconError)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_full_disk(small_disk: Path) -> None:
    write_bytes(small_disk / "a.bin", b"old")
    with pytest.raises(OutputError) as caught:
        write_bytes(small_disk / "a.bin", bytes(2**20))
    remedy = "the disk is full; free some space or choose another place"
    assert str(caught.value) == f"{small_disk / 'a.bin'}: {remedy}"
    assert [path.read_bytes() for path in small_disk.iterdir()] == [b"old"]


def test_a_read_only_disk(small_disk: Path) -> None:
    write_bytes(small_disk / "a.bin", b"old")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OutputError, match=r"a\.bin: is on a disk that cannot be written to; choose another place$"):
        write(small_disk / "a.bin")
    assert [path.read_bytes() for path in small_disk.iterdir()] == [b"old"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to become another user")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    os.seteuid(65534)
    try:
        with pytest.raises(OutputError, match=r"permission denied; check the permissions or choose another place$"):
            write(folder / "a.bin")
    finally:
        os.seteuid(0)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    for error in (KeyError("a"), OSError("an error without a number"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, atomic_path(tmp_path / "a.txt"):
            raise error
        assert caught.value is error
    with pytest.raises(FileNotFoundError, match=r"input\.txt"), atomic_path(tmp_path / "a.txt"):
        (tmp_path / "input.txt").read_text()
    assert not list(tmp_path.iterdir())
