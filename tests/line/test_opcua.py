"""OPC UA with a real client in a process of its own."""

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from procon.errors import MissingExtraError, OutputError, ProconError
from procon.line.certificates import Certificates
from procon.line.opcua import OpcUaServer, result_values
from procon.line.reporting import State
from procon.line.vision_system import METHODS, NAMESPACE, RESULT_VARIABLES, STATES_OF_VISION, vision_state
from tests.disk import fill_disk, small_disk
from tests.line.stand_in import StandIn, score_of, write_part
from tests.line.test_modbus import rows, running, write_line
from tests.line.test_station import Rig, named, parts, rig
from tests.line.test_watch import eventually, free_port

__all__ = ["parts", "rig"]  # fixtures
CLIENT = Path(__file__).with_name("vision_client.py")


def controller(port: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), f"opc.tcp://127.0.0.1:{port}/procon", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def results_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_right(seen: list[dict[str, Any]], numbers: list[int]) -> None:
    assert [result["PartId"] for result in seen] == [str(number) for number in numbers]
    for number, result in zip(numbers, seen, strict=True):
        score = score_of(number)
        assert float(result["Score"]) == score
        assert result["Verdict"] == ("anomalous" if score > 0.5 else "good")


def opcua_line(folder: Path, stations: int = 1, more: str = "") -> tuple[Path, int]:
    port = free_port()
    path, _ = write_line(folder, stations, more=f'[opcua]\naddress = "127.0.0.1:{port}"\n{more}')
    return path, port


# -------------------------------------------------------------------------------------------------------------- tables


def test_states_have_the_numbers_of_the_specification() -> None:
    assert [(state.name, state.number) for state in STATES_OF_VISION] == [
        ("Preoperational", 1),
        ("Halted", 2),
        ("Error", 3),
        ("Operational", 4),
        ("Initialized", 5),
        ("Ready", 6),
        ("SingleExecution", 7),
        ("ContinuousExecution", 8),
    ]


@pytest.mark.parametrize(
    ("state", "triggered", "busy", "halted", "name"),
    [
        ("loading", True, False, False, "Preoperational"),
        ("error", True, True, False, "Error"),
        ("paused", True, False, False, "Initialized"),
        ("paused", True, False, True, "Halted"),
        ("ready", True, False, False, "Ready"),
        ("ready", True, True, False, "SingleExecution"),
        ("busy", True, False, False, "SingleExecution"),
        ("ready", False, False, False, "ContinuousExecution"),
        ("stopped", False, False, False, "Halted"),
    ],
)
def test_states_of_a_station_in_the_words_of_the_specification(
    state: State, triggered: bool, busy: bool, halted: bool, name: str
) -> None:
    assert vision_state(state, triggered=triggered, busy=busy, halted=halted).name == name


def test_a_result_without_a_verdict_holds_no_number() -> None:
    body = {"id": "1", "part": "p", "verdict": "none", "cause": "deadline", "error": "late", "model": "", "source": ""}
    values = result_values({**body, "time": "2026-01-01T00:00:00.000+00:00", "seconds": 0.1, "score": 0.1})
    assert list(values) == [variable.name for variable in RESULT_VARIABLES]
    assert math.isnan(values["Score"]) and math.isnan(values["Threshold"]) and values["Verdict"] == "none"


def test_the_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from procon.line.modbus import ModbusServer

    monkeypatch.setitem(sys.modules, "asyncua", None)
    monkeypatch.setitem(sys.modules, "pymodbus", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[opcua\]'"):
        OpcUaServer("127.0.0.1", 1, [], None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[modbus\]'"):
        ModbusServer("127.0.0.1", 1, {})


def test_a_certificate_is_made_whole_or_not_at_all_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    with small_disk() as disk:
        filler, made = fill_disk(disk), Certificates(disk / "opcua")
        for _ in range(2):  # what the first failure leaves must not stop the second
            with pytest.raises(OutputError, match="the disk is full; free some space or choose another place"):
                asyncio.run(made.renew())
            assert not [path for path in disk.rglob("*") if path.is_file() and path != filler]
        filler.unlink()
        asyncio.run(made.renew())
        first = made.key.read_bytes(), made.certificate.read_bytes()
        asyncio.run(made.renew())
        assert (made.key.read_bytes(), made.certificate.read_bytes()) == first


@pytest.mark.parametrize("damaged", ["own-key.pem", "own.der"])
def test_a_damaged_certificate_is_a_sentence_and_is_left_alone(damaged: str, tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    asyncio.run(Certificates(tmp_path).renew())
    (tmp_path / damaged).write_bytes(b"")
    server = OpcUaServer("127.0.0.1", free_port(), [], Certificates(tmp_path))
    with pytest.raises(
        ProconError, match=r"^\[opcua\] .*own-key.pem: is damaged, or its certificate .*; remove it and"
    ):
        server.start()
    assert (tmp_path / damaged).read_bytes() == b"" and not list(tmp_path.glob(".procon*"))


def test_what_is_no_certificate_trusts_nobody_and_stops_nobody(tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    made = Certificates(tmp_path)
    assert made.fingerprints() == set()  # there is no folder yet
    asyncio.run(made.renew())
    (made.trusted / "a.der").write_bytes(b"no certificate")
    (made.trusted / "b.pem").mkdir()
    (made.trusted / "c.der").write_bytes(made.certificate.read_bytes())
    assert len(made.fingerprints()) == 1


# -------------------------------------------------------------------------------------------------- in this process


def ask(port: int, work: Callable[[Any, Any, int], Awaitable[Any]]) -> Any:
    """Run ``work`` with a client, the object of the station and the namespace."""
    from asyncua import Client

    async def run() -> Any:
        async with Client(f"opc.tcp://127.0.0.1:{port}/procon", timeout=20) as client:
            index = await client.get_namespace_index(NAMESPACE)
            return await work(client, await client.nodes.objects.get_child(f"{index}:top"), index)

    return asyncio.run(run())


def test_a_call_that_does_not_fit_its_method_is_refused_by_its_status(rig: Rig, parts: Path) -> None:
    ua = pytest.importorskip("asyncua.ua")
    station, _, _ = rig.add(named(parts), StandIn())
    port = free_port()
    server = OpcUaServer("127.0.0.1", port, [station], None)
    station.plan.listeners.append(server.objects[0])

    async def work(_client: Any, top: Any, index: int) -> list[str]:
        automatic = await top.get_child([f"{index}:VisionStateMachine", f"{index}:AutomaticModeStateMachine"])
        refused = []
        for arguments in ((), ("1",), ("1", "", "", ""), ("x" * 201, "", ""), ("a\nb", "", ""), ("\u202e", "", "")):
            with pytest.raises(ua.UaStatusCodeError) as caught:
                await automatic.call_method(f"{index}:StartSingleJob", *arguments)
            refused.append(type(caught.value).__name__)
        return refused

    rig.start()
    server.start()
    try:
        refused = ask(port, work)
        server.check()
    finally:
        server.stop()
    few, many, invalid = "BadArgumentsMissing", "BadTooManyArguments", "BadInvalidArgument"
    assert refused == [few, few, many, invalid, invalid, invalid]
    assert station.results == 0


def test_methods_move_the_states(rig: Rig, parts: Path) -> None:  # noqa: PLR0915 - one walk through the states
    pytest.importorskip("asyncua")
    station, _, _ = rig.add(named(parts), StandIn(0.3))
    port = free_port()
    server = OpcUaServer("127.0.0.1", port, [station], None)
    station.plan.listeners.extend(server.objects)
    rig.start()
    server.start()

    async def work(_client: Any, root: Any, index: int) -> None:
        async def node(path: str) -> Any:
            return await root.get_child([f"{index}:{name}" for name in path.split("/")])

        async def call(path: str, *arguments: str) -> Any:
            parent, _, name = path.rpartition("/")
            return await (await node(parent)).call_method(f"{index}:{name}", *arguments)

        async def state() -> tuple[str, str]:
            paths = ("VisionStateMachine", "VisionStateMachine/AutomaticModeStateMachine")
            outer, inner = [await (await node(f"{path}/CurrentState")).read_value() for path in paths]
            return outer, inner

        async def become(outer: str, inner: str) -> None:
            for _ in range(500):
                if await state() == (outer, inner):
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(f"{await state()} did not become {outer}, {inner}")

        automatic = "VisionStateMachine/AutomaticModeStateMachine"
        for method in METHODS:
            await node(f"{method.path}/{method.name}")
        await become("Operational", "Ready")
        assert await (await node("ResultManagement/Verdict")).read_value() == "none"
        job, error = await call(f"{automatic}/StartSingleJob", "4", "", "")
        assert error == 0
        assert (await call(f"{automatic}/StartSingleJob", "5", "", ""))[1] == 1  # busy
        await become("Operational", "SingleExecution")
        await become("Operational", "Ready")
        content = json.loads(await (await node("ResultManagement/ResultContent")).read_value())
        assert (content["id"], content["part"], content["score"]) == (job, "4", score_of(4))
        assert await (await node("ResultManagement/Score")).read_value() == score_of(4)
        assert (await call("ResultManagement/GetResultById", "unknown"))[1] == 3
        assert await call("RecipeManagement/PrepareRecipe", "stand-in") == 0
        assert await call("RecipeManagement/PrepareRecipe", "other") == 3
        assert await call(f"{automatic}/StartContinuous") == 2
        assert await call(f"{automatic}/Stop") == 0
        await become("Operational", "Initialized")
        job, error = await call(f"{automatic}/StartSingleJob", "4", "", "")
        await asyncio.sleep(0.3)
        content = json.loads((await call("ResultManagement/GetResultById", job))[0])
        assert (content["verdict"], content["cause"]) == ("none", "paused")
        assert await call("VisionStateMachine/Halt") == 0
        await become("Halted", "")
        assert (await call(f"{automatic}/StartSingleJob", "4", "", ""))[1] == 1
        assert await call("VisionStateMachine/SelectModeAutomatic") == 1
        assert await call("VisionStateMachine/Reset") == 0
        await become("Operational", "Ready")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(station, "_clear_fault", lambda: None)  # the station would be well again at its next look
            station._set_fault("camera gone")
            await become("Error", "")
        await become("Operational", "Ready")

    try:
        ask(port, work)
    finally:
        server.stop()


# -------------------------------------------------------------------------------------------------- real controllers


def run_parts(folder: Path, count: int, stations: int, interval: float) -> None:
    path, port = opcua_line(folder, stations)
    for station in range(stations):
        for number in range(count):
            write_part(folder / f"in{station}" / f"{number}.png", number)
    found: dict[int, subprocess.CompletedProcess[str]] = {}

    def inspect(station: int) -> None:
        found[station] = controller(port, "parts", 0, count, f"s{station}", interval)

    with running(path):
        threads = [threading.Thread(target=inspect, args=(station,)) for station in range(stations)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for station in range(stations):
            assert_right(results_of(found[station]), list(range(count)))
            eventually(lambda station=station: len(rows(folder / f"s{station}.csv")) == count)  # type: ignore[misc]
            assert rows(folder / f"s{station}.csv") == [str(number) for number in range(count)]


@pytest.mark.slow
def test_twenty_jobs_none_lost_doubled_or_swapped(tmp_path: Path) -> None:
    """With a client that asks for its events every 20 ms."""
    pytest.importorskip("asyncua")
    run_parts(tmp_path, 20, 1, 20)


@pytest.mark.slow
def test_a_thousand_jobs_of_four_controllers_none_lost_doubled_or_swapped(tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    run_parts(tmp_path, 250, 4, 0)


@pytest.mark.slow
def test_a_controller_that_dies_in_the_middle_leaves_a_line_for_the_next(tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    path, port = opcua_line(tmp_path)
    for number in range(6):
        write_part(tmp_path / "in0" / f"{number}.png", number)
    with running(path, 0.2):
        assert controller(port, "die", 3, "s0").returncode == 0
        assert_right(results_of(controller(port, "parts", 4, 6, "s0")), [4, 5])
        eventually(lambda: rows(tmp_path / "s0.csv") == ["3", "4", "5"])


@pytest.mark.slow
def test_only_trusted_clients_connect_and_they_encrypt(tmp_path: Path) -> None:
    pytest.importorskip("asyncua")
    path, port = opcua_line(tmp_path, more='security = "sign-and-encrypt"\ncertificates = "pki"\n')
    for number in range(3):
        write_part(tmp_path / "in0" / f"{number}.png", number)
    own = tmp_path / "client"
    own.mkdir()
    with running(path):
        eventually((tmp_path / "pki" / "own.der").is_file)
        refused = controller(port, "parts", 0, 1, "s0", 5, own)
        assert refused.returncode != 0 and "refused" in refused.stderr
        (tmp_path / "pki" / "trusted" / "client.der").write_bytes((own / "client.der").read_bytes())
        assert_right(results_of(controller(port, "parts", 0, 3, "s0", 5, own)), [0, 1, 2])
        unencrypted = controller(port, "parts", 0, 1, "s0")
        assert unencrypted.returncode != 0 and unencrypted.stdout == ""
    assert (tmp_path / "pki" / "own-key.pem").stat().st_mode & 0o077 == 0
