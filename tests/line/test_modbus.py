"""The handshake of a PLC, with a real client in a process of its own for what must not be lost, doubled or swapped."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procon.errors import ImageError
from procon.line.arrivals import Pushed
from procon.line.handshake import Handshake
from procon.line.parts import CAUSES, Arrival
from procon.line.registers import BLOCK, BY_NAME, LENGTH, REGISTERS, STATUS, decode_register, encode_status
from tests.line.stand_in import StandIn, score_of, write_part
from tests.line.test_station import Rig, named, parts, rig
from tests.line.test_watch import Clock, eventually, free_port

__all__ = ["parts", "rig"]  # fixtures
PLC = Path(__file__).with_name("plc.py")


def shown(handshake: Handshake, *names: str) -> list[int]:
    words = handshake.status()
    return [decode_register(words, name, STATUS) for name in names]


def until_done(handshake: Handshake) -> None:
    eventually(lambda: shown(handshake, "done") == [1])


def order(part: int, job: int = 0) -> list[int]:
    return [1, job, part >> 16, part & 0xFFFF]


# ----------------------------------------------------------------------------------------------------------- registers


def test_registers_do_not_overlap_and_fit_their_block() -> None:
    used = [register.offset + word for register in REGISTERS for word in range(register.words)]
    assert len(set(used)) == len(used) and max(used) == LENGTH - 1 < BLOCK
    assert all((register.offset >= STATUS) == (register.writer == "line") for register in REGISTERS)


def test_values_survive_and_saturate() -> None:
    words = encode_status({"result_part": 70_000, "score": 99_999, "regions": -1})
    assert [decode_register(words, name, STATUS) for name in ("result_part", "score", "regions")] == [70_000, 65_535, 0]


# ----------------------------------------------------------------------------------------------------------- handshake


def test_a_trigger_is_busy_done_and_acknowledged(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), StandIn(0.05))
    handshake = Handshake(station, 10.0)
    station.plan.listeners.append(handshake)
    rig.start()
    assert shown(handshake, "ready", "busy", "done") == [1, 0, 0]
    for number in (4, 1):
        handshake.write(0, order(number))
        assert shown(handshake, "ready", "busy", "done", "pass", "fail", "no_verdict") == [0, 1, 0, 0, 0, 0]
        until_done(handshake)
        assert shown(handshake, "pass", "fail", "no_verdict") == ([1, 0, 0] if number == 4 else [0, 1, 0])
        assert shown(handshake, "result_part", "score") == [number, round(2000 * score_of(number))]
        handshake.write(0, [1])  # a PLC that writes its outputs in each cycle
        assert shown(handshake, "done", "result_count") == [1, 1 if number == 4 else 2]
        handshake.write(0, [0])
        assert shown(handshake, "ready", "done", "pass", "fail", "no_verdict") == [1, 0, 0, 0, 0]
    assert shown(handshake, "result_count", "overruns") == [2, 0]


def test_a_trigger_while_busy_is_counted_and_the_first_part_keeps_its_result(rig: Rig, parts: Path) -> None:
    station, heard, _ = rig.add(named(parts), StandIn(0.3))
    handshake = Handshake(station, 10.0)
    station.plan.listeners.append(handshake)
    rig.start()
    handshake.write(0, order(4))
    handshake.write(0, [0])
    handshake.write(0, order(5))
    until_done(handshake)
    assert shown(handshake, "result_part", "pass", "overruns") == [4, 1, 1]
    assert [body["part"] for body in heard.results] == ["4"]
    handshake.write(0, [0])
    handshake.write(0, order(5))
    until_done(handshake)
    assert shown(handshake, "result_part", "score") == [5, round(2000 * score_of(5))]


def test_a_result_that_nobody_acknowledges_is_withdrawn(rig: Rig, parts: Path) -> None:
    clock = Clock()
    station, _, _ = rig.add(named(parts), StandIn())
    handshake = Handshake(station, 10.0, clock)
    station.plan.listeners.append(handshake)
    rig.start()
    handshake.write(0, order(4))
    until_done(handshake)
    clock.now += 9.9
    handshake.tick()
    assert shown(handshake, "done", "pass") == [1, 1]
    clock.now += 0.2
    handshake.tick()
    assert shown(handshake, "done", "pass", "fail", "no_verdict", "withdrawn") == [0, 0, 0, 0, 1]
    handshake.write(0, [1])  # still up: no new part
    assert shown(handshake, "busy", "done") == [0, 0]
    handshake.write(0, [0])
    handshake.write(0, order(4))
    until_done(handshake)


@pytest.mark.parametrize("cause", ["image", "deadline", "paused", "fault"])
def test_no_verdict_is_done_without_pass_and_says_why(cause: str, rig: Rig, parts: Path) -> None:
    late = cause == "deadline"
    station, _, _ = rig.add(named(parts), StandIn(1.0 if late else 0.0), deadline=0.5 if late else 20.0)
    handshake = Handshake(station, 10.0)
    station.plan.listeners.append(handshake)
    rig.start()
    (parts / "50.png").write_bytes(b"no image")
    if cause == "paused":
        handshake.write(BY_NAME["pause"].offset, [1])
        assert shown(handshake, "state", "ready") == [3, 0]
    if cause == "fault":
        station._set_fault("camera gone")
        station.step = lambda *_: time.sleep(0.01) or station._answer_one(station._generation, 0.05)  # type: ignore
        assert shown(handshake, "error", "ready") == [1, 0]
    handshake.write(0, order(50 if cause == "image" else 4))
    until_done(handshake)
    assert shown(handshake, "pass", "fail", "no_verdict", "score") == [0, 0, 1, 0]
    assert CAUSES[shown(handshake, "cause")[0]] == cause


def test_a_station_that_somebody_else_triggers_is_done_without_a_verdict(rig: Rig, parts: Path) -> None:
    from procon.line.parts import Trigger

    station, _, _ = rig.add(named(parts), StandIn(0.5))
    handshake = Handshake(station, 10.0)
    station.plan.listeners.append(handshake)
    rig.start()
    other = station.trigger(Trigger("1"))
    handshake.write(0, order(4))
    assert shown(handshake, "done", "pass", "no_verdict", "result_part", "overruns") == [1, 0, 1, 4, 1]
    assert CAUSES[shown(handshake, "cause")[0]] == "busy"
    assert (other.wait(30) or {})["part"] == "1"
    assert shown(handshake, "result_part", "pass", "no_verdict") == [4, 0, 1]


def test_a_station_that_takes_images_by_itself_shows_no_old_verdict_while_it_fails(rig: Rig, parts: Path) -> None:
    class Once(Pushed):
        sent = gone = False

        def poll(self, is_done: Any) -> list[Arrival]:
            if Once.gone:
                raise ImageError("rtsp://camera: gave no picture; check the camera and its cable")
            first, Once.sent = not Once.sent, True
            return [Arrival(parts / "4.png", "4")] if first else []

    station, _, _ = rig.add(Once, StandIn(), triggered=False)
    handshake = Handshake(station, 10.0)
    station.plan.listeners.append(handshake)
    rig.start()
    eventually(lambda: shown(handshake, "result_count") == [1])
    assert shown(handshake, "done", "pass", "score") == [0, 1, round(2000 * score_of(4))]
    Once.gone = True
    eventually(lambda: shown(handshake, "error") == [1])
    eventually(lambda: shown(handshake, "pass", "fail", "score") == [0, 0, 0])


# --------------------------------------------------------------------------------------------------- real PLC programs


def write_line(folder: Path, stations: int = 1, *, deadline: int = 20_000, more: str = "") -> tuple[Path, int]:
    """The settings of a line with Modbus; gives the file and the port."""
    port = free_port()
    text = f'[modbus]\naddress = "127.0.0.1:{port}"\nacknowledge_seconds = 2.0\n{more}\n'
    for number in range(stations):
        (folder / f"in{number}").mkdir(exist_ok=True)
        text += f'[[station]]\nname = "s{number}"\nsource = "in{number}"\ntrigger = true\nsettle = 0.0\n'
        text += f'model = "m.procon"\ncsv = "s{number}.csv"\ndeadline_ms = {deadline}\n'
    (folder / "m.procon").touch()
    path = folder / "line.toml"
    path.write_text(text)
    return path, port


@contextmanager
def running(path: Path, seconds: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A line with the stand-in for a model, as a process."""
    command = [sys.executable, "-m", "tests.line.stand_in", str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        _, err = process.communicate()
        assert "Traceback" not in err, err


def plc(port: int, *arguments: object) -> list[dict[str, Any]]:
    """Run the program of a PLC: what it saw, in order."""
    command = [sys.executable, str(PLC), str(port), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_right(seen: list[dict[str, Any]], numbers: list[int]) -> None:
    """One result for each part, in order, and each its own."""
    assert [result["result_part"] for result in seen] == numbers
    for result in seen:
        score = score_of(result["result_part"])
        assert result["score"] == round(2000 * score)
        assert (result["pass"], result["fail"], result["no_verdict"]) == (int(score <= 0.5), int(score > 0.5), 0)


def rows(path: Path) -> list[str]:
    """The parts of the results in a CSV file."""
    import csv

    with path.open(newline="", encoding="utf-8") as stream:
        return [row["part"] for row in csv.DictReader(stream) if row["kind"] == "result"]


def run_parts(folder: Path, count: int, stations: int) -> None:
    path, port = write_line(folder, stations)
    for station in range(stations):
        for number in range(count):
            write_part(folder / f"in{station}" / f"{number}.png", number)
    with running(path):
        command = [sys.executable, str(PLC), str(port), "parts", "0", str(count)]
        clients = [
            subprocess.Popen([*command, str(block)], stdout=subprocess.PIPE, text=True) for block in range(stations)
        ]
        for block, client in enumerate(clients):
            out, _ = client.communicate()
            assert client.returncode == 0
            assert_right([json.loads(line) for line in out.splitlines()], list(range(count)))
            eventually(lambda block=block: len(rows(folder / f"s{block}.csv")) == count)  # type: ignore[misc]
            assert rows(folder / f"s{block}.csv") == [str(number) for number in range(count)]


def test_thirty_triggers_of_two_plcs_none_lost_doubled_or_swapped(tmp_path: Path) -> None:
    pytest.importorskip("pymodbus")
    run_parts(tmp_path, 15, 2)


@pytest.mark.slow
def test_a_thousand_triggers_of_four_plcs_none_lost_doubled_or_swapped(tmp_path: Path) -> None:
    pytest.importorskip("pymodbus")
    run_parts(tmp_path, 250, 4)


@pytest.mark.slow
def test_a_plc_that_dies_in_the_middle_leaves_a_line_for_the_next(tmp_path: Path) -> None:
    pytest.importorskip("pymodbus")
    path, port = write_line(tmp_path)
    for number in range(10):
        write_part(tmp_path / "in0" / f"{number}.png", number)
    with running(path, 0.2):
        plc(port, "die", 3)  # triggers and ends without an acknowledgement, the trigger still up
        seen = plc(port, "parts", 4, 10)
        assert_right(seen, list(range(4, 10)))
        eventually(lambda: rows(tmp_path / "s0.csv") == ["3", *map(str, range(4, 10))])


@pytest.mark.slow
def test_kill_9_leaves_the_outbox_whole_and_the_next_start_says_so(tmp_path: Path) -> None:
    import csv
    import sqlite3

    pytest.importorskip("pymodbus")
    path, port = write_line(tmp_path)
    for number in range(40):
        write_part(tmp_path / "in0" / f"{number}.png", number)
    seen = 0
    for _ in range(2):
        with running(path) as process:
            command = [sys.executable, str(PLC), str(port), "parts", str(seen), "40"]
            client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert client.stdout is not None
            for _ in range(5):
                assert client.stdout.readline()
            process.kill()
            process.wait()
            out, _ = client.communicate()
            seen += 5 + len(out.splitlines())
        base = sqlite3.connect(tmp_path / "outbox" / "s0.sqlite")
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        base.close()
    with running(path):
        (last,) = plc(port, "parts", 39, 40)
        assert last["result_part"] == 39 and last["restarted_before"] == 1 and last["restarted"] == 0
        eventually(lambda: "39" in rows(tmp_path / "s0.csv"))
    with (tmp_path / "s0.csv").open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    starts = [line["error"] for line in lines if line["kind"] == "started"]
    assert starts[0] == "the line started for the first time"
    assert set(starts[1:]) == {"the line restarted after it was killed or lost its power"} and len(starts) >= 3
    # What the PLC has seen is on disk, in order; a part that was delivered twice has the same id.
    once = list(dict.fromkeys(line["id"] for line in lines if line["kind"] == "result"))
    delivered = {line["id"]: line["part"] for line in lines if line["kind"] == "result"}
    assert [delivered[event] for event in once][:5] == ["0", "1", "2", "3", "4"]
    assert {str(number) for number in range(seen)} <= set(delivered.values())
