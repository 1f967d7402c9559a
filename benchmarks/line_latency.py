"""From trigger to result on a line, and how much of that is the protocol. Writes ``benchmarks/results/line.csv``.

    python benchmarks/line_latency.py [--parts 1000] [--weights FILE --real-parts 50] [--device cuda] [--protocols HTTP]

The line runs in this process, each station with a client in a process of its own that triggers one part after the
other over loopback. Latency is what the client sees. Overhead is that minus the time in which the station opened and
scored the image. ``bare`` is a round trip of the same client that asks for nothing but a value: the floor of the
protocol on the machine as it is now. The OPC UA client asks for the shortest publishing interval; with one of N ms, a
result waits for up to N ms more. The stand-in for a model reads one pixel; with ``--weights`` a detector is fitted on
rendered parts. Protocols whose library is missing are left out. Rows of what was not measured again are kept, and
``--parts 0`` measures the detector alone.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BARE = 200  # round trips
STAND_IN = "stand-in"
LIBRARIES = {"direct": "procon", "HTTP": "procon", "Modbus": "pymodbus", "OPC UA": "asyncua"}


# ------------------------------------------------------------------------------------------------------------- clients


def client_http(port: int, station: int, parts: int) -> tuple[list[float], list[float]]:
    """Latencies of parts and of bare requests, in seconds."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(method: str, path: str) -> bytes:
        connection.request(method, path)
        return connection.getresponse().read()

    def inspect(part: int) -> None:
        assert json.loads(ask("POST", f"/s{station}/trigger?part={part}"))["part"] == str(part)

    return timed(inspect, parts), timed(lambda _: ask("GET", "/nothing"), BARE)


def client_modbus(port: int, station: int, parts: int) -> tuple[list[float], list[float]]:
    """The same; the registers are read again and again until the part is done."""
    from pymodbus.client import ModbusTcpClient

    from procon.line.registers import BLOCK, LENGTH, STATUS, decode_register

    client, first = ModbusTcpClient("127.0.0.1", port=port, timeout=30), BLOCK * station
    assert client.connect()

    def read() -> list[int]:
        return list(client.read_holding_registers(first + STATUS, count=LENGTH - STATUS).registers)

    def inspect(part: int) -> None:
        client.write_registers(first, [1, 0, part >> 16, part & 0xFFFF])
        while not decode_register(words := read(), "done", STATUS):
            time.sleep(0.0005)
        assert decode_register(words, "result_part", STATUS) == part

    def acknowledge(_part: int) -> None:
        client.write_register(first, 0)

    return timed(inspect, parts, acknowledge), timed(lambda _: read(), BARE)


def client_opcua(port: int, station: int, parts: int) -> tuple[list[float], list[float]]:
    """The same; the result comes as an event."""
    import asyncio

    from asyncua import Client

    from procon.line.vision_system import NAMESPACE

    class Events:
        def __init__(self) -> None:
            self.parts: asyncio.Queue[str] = asyncio.Queue()

        def event_notification(self, event: Any) -> None:
            self.parts.put_nowait(event.PartId)

    async def run() -> tuple[list[float], list[float]]:
        async with Client(f"opc.tcp://127.0.0.1:{port}/procon", timeout=60) as client:
            index = await client.get_namespace_index(NAMESPACE)
            root = await client.nodes.objects.get_child(f"{index}:s{station}")
            names = ("VisionStateMachine", "AutomaticModeStateMachine")
            machine = await root.get_child([f"{index}:{name}" for name in names])
            start, beat = await machine.get_child(f"{index}:StartSingleJob"), await root.get_child(f"{index}:Heartbeat")
            events = Events()
            subscription = await client.create_subscription(0, events)
            kind = await client.nodes.base_event_type.get_child(f"{index}:ResultReadyEventType")
            await subscription.subscribe_events(root, kind)
            seconds, bare = [], []
            for part in range(parts):
                begun = time.perf_counter()
                while (await machine.call_method(start, str(part), "", ""))[1] != 0:
                    await asyncio.sleep(0.0005)
                assert await asyncio.wait_for(events.parts.get(), 60) == str(part)
                seconds.append(time.perf_counter() - begun)
            for _ in range(BARE):
                begun = time.perf_counter()
                await beat.read_value()
                bare.append(time.perf_counter() - begun)
            return seconds, bare

    return asyncio.run(run())


def timed(work: Callable[[int], object], count: int, after: Callable[[int], object] = lambda _: None) -> list[float]:
    """How long each call took; what comes ``after`` it is not counted."""
    seconds = []
    for number in range(count):
        begun = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - begun)
        after(number)
    return seconds


CLIENTS = {"HTTP": client_http, "Modbus": client_modbus, "OPC UA": client_opcua}


# ------------------------------------------------------------------------------------------------------------ the line


class Seconds:
    """A live output that notes how long each part was in work."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], float] = {}

    def on_busy(self, _station: Any, _part: Any) -> None:
        """Nothing to note."""

    def on_result(self, station: Any, body: dict[str, Any]) -> None:
        """Note it."""
        assert body["verdict"] != "none", body
        self.of[station.name, body["part"]] = body["seconds"]

    def on_state(self, _station: Any, _state: str, _reason: str) -> None:
        """Nothing to note."""


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(protocol: str, stations: int, parts: int, stored: bool, images: list[Path], load: Any) -> dict[str, Any]:
    """One row."""
    from procon.line.build import make_line
    from procon.line.parts import Trigger
    from procon.line.settings import parse_line

    port, before = free_port(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "m.procon").touch()
        (folder / "in").mkdir()
        for part in range(parts):
            (folder / "in" / f"{part}.png").symlink_to(images[part % len(images)])
        table = {"HTTP": "http", "Modbus": "modbus", "OPC UA": "opcua"}.get(protocol)
        text = f'[{table}]\naddress = "127.0.0.1:{port}"\n' if table else ""
        for station in range(stations):
            text += f'[[station]]\nname = "s{station}"\nsource = "in"\ntrigger = true\nsettle = 0.0\n'
            text += 'model = "m.procon"\ndeadline_ms = 60000\n' + (f'csv = "{station}.csv"\n' if stored else "")
        settings, problems = parse_line(text, folder / "line.toml")
        assert settings is not None, problems
        line, seconds, stop = make_line(settings, folder, load=load), Seconds(), threading.Event()
        for station in line.stations:
            station.plan.listeners.insert(0, seconds)
        thread = threading.Thread(target=line.run, args=(stop,))
        thread.start()
        try:
            while not all(station.state == "ready" and station.slot.current for station in line.stations):
                time.sleep(0.05)
            while table and socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                time.sleep(0.05)
            if protocol == "direct":

                def inspect(part: int) -> None:
                    line.stations[0].trigger(Trigger(str(part))).wait()

                found = [(timed(inspect, parts), [0.0])]
            else:
                command = [sys.executable, __file__, "--client", protocol, str(port)]
                processes = [
                    subprocess.Popen([*command, str(number), str(parts)], stdout=subprocess.PIPE, text=True)
                    for number in range(stations)
                ]
                found = [tuple(json.loads(process.communicate()[0])) for process in processes]  # type: ignore[misc]
        finally:
            stop.set()
            thread.join()
            for station in line.stations:
                station.plan.outbox.close()
    latency = [value for values, _ in found for value in values]
    scoring = [seconds.of[f"s{number}", str(part)] for number in range(len(found)) for part in range(parts)]
    overhead = [max(0.0, total - part) for total, part in zip(latency, scoring, strict=True)]
    bare = [value for _, values in found for value in values]
    row: dict[str, Any] = {"protocol": protocol, "stations": stations, "stored": stored, "parts": len(latency)}
    for name, values in (("latency", latency), ("scoring", scoring), ("overhead", overhead)):
        row |= {f"{name}_{key}_ms": value for key, value in quantiles(values).items()}
    row |= {f"bare_{key}_ms": value for key, value in quantiles(bare).items() if key != "worst"}
    row["overhead_to_bare_p50"] = round(row["overhead_p50_ms"] / row["bare_p50_ms"], 2) if row["bare_p50_ms"] else ""
    row["load"] = f"{before:.1f} to {os.getloadavg()[0]:.1f}"
    print({key: row[key] for key in row if "p50" in key or "p99" in key or key in ("protocol", "stations", "load")})
    return row


def quantiles(values: list[float]) -> dict[str, float]:
    """Milliseconds at p50 and p99, and the worst."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    found = {"p50": statistics.median(ordered), "p99": p99, "worst": ordered[-1]}
    return {name: round(1000 * value, 3) for name, value in found.items()}


def fit(weights: str, device: str, folder: Path) -> tuple[Path, list[Path]]:
    """A model file fitted on rendered parts, and images to score."""
    from procon import Config, Detector
    from procon.demo.parts import write_set

    write_set(folder / "parts", train=24, good=6, defects_per_kind=1)
    config = Config(backbone="dinov2-small", weights=weights)
    detector = Detector(config, device=device).fit(folder / "parts" / "train" / "good")
    return detector.save(folder / "m.procon"), sorted((folder / "parts" / "test").rglob("*.png"))


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--real-parts", type=int, default=50)
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--protocols", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    arguments = parser.parse_args()
    from tests.line.stand_in import StandIn, write_part

    from environment import environment, read_rows, write_rows
    from procon.line.models import model_loader

    rows = []
    protocols = [name for name in arguments.protocols if find_spec(LIBRARIES[name]) is not None]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        images = [write_part(folder / f"{number}.png", number) for number in range(50)]
        load: Any = lambda _path: (StandIn(), "0")  # noqa: E731
        cases = [(name, 1, False) for name in protocols] + [(name, 1, True) for name in protocols]
        cases += [(name, 4, False) for name in protocols if name != "direct"]
        for protocol, stations, stored in cases if arguments.parts else []:
            rows.append({"model": STAND_IN, **measure(protocol, stations, arguments.parts, stored, images, load)})
        if arguments.weights:
            model, images = fit(arguments.weights, arguments.device, folder)
            loads = model_loader(weights=arguments.weights, device=arguments.device)
            for protocol in protocols:
                for stations in (1,) if protocol == "direct" else (1, 4):
                    row = measure(protocol, stations, arguments.real_parts, False, images, lambda _: loads(model))
                    rows.append({"model": "ViT-S/14, 392 pixels", **row})
    device = environment()["device"]
    measured = {case_of(row) for row in rows}
    kept = [row for row in read_rows("line") if row["device"] != device or case_of(row) not in measured]
    stand_ins_first = sorted(
        [*kept, *rows], key=lambda row: (row.get("device", device), row["model"] != STAND_IN, order_of(row))
    )
    print(write_rows("line", stand_ins_first))


def case_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row measures."""
    return tuple(str(row[name]) for name in ("model", "protocol", "stations", "stored"))


def order_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Its place among those of the same model."""
    return int(row["stations"]), str(row["stored"]), list(LIBRARIES).index(row["protocol"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        print(json.dumps(CLIENTS[sys.argv[2]](*map(int, sys.argv[3:]))))
    else:
        main()
