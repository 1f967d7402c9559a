"""What happens on a plant floor, with clients in processes of their own: plc.py, vision_client.py, http_client.py."""

import csv
import json
import math
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from procon.line.parts import CAUSES
from tests.line.stand_in import score_of, write_part
from tests.line.test_modbus import plc, rows, running, write_line
from tests.line.test_opcua import controller, results_of
from tests.line.test_watch import BROKER, broker, eventually, free_port

pytestmark = pytest.mark.slow
CLIENT = Path(__file__).with_name("http_client.py")
PROTOCOLS = ("HTTP", "Modbus", "OPC UA")


@pytest.fixture(autouse=True)
def _libraries() -> None:
    pytest.importorskip("asyncua")
    pytest.importorskip("pymodbus")


class Floor:
    """A line that speaks all protocols, and its clients."""

    def __init__(self, folder: Path, stations: int = 1, deadline: int = 20_000, parts: int = 10) -> None:
        self.folder, self.http, self.opcua = folder, free_port(), free_port()
        tables = f'[http]\naddress = "127.0.0.1:{self.http}"\n[opcua]\naddress = "127.0.0.1:{self.opcua}"\n'
        self.path, self.modbus = write_line(folder, stations, deadline=deadline, more=tables)
        for station in range(stations):
            for number in range(parts):
                write_part(folder / f"in{station}" / f"{number}.png", number)

    def add(self, key: str, value: str) -> None:
        """Set a key of all stations; {} in its value stands for the name of the station."""
        text = self.path.read_text(encoding="utf-8")
        for station in range(text.count("[[station]]")):
            own = f'csv = "s{station}.csv"\n'
            text = text.replace(own, f'{own}{key} = "{value.format(f"s{station}")}"\n')
        self.path.write_text(text, encoding="utf-8")

    def ask_http(self, *arguments: object) -> list[dict[str, Any]]:
        command = [sys.executable, str(CLIENT), str(self.http), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def inspect(self, protocol: str, first: int, end: int) -> list[tuple[int, str, float | None]]:
        """Part, verdict and score of parts of the first station, as a client saw them."""
        if protocol == "Modbus":
            verdicts = {"pass": "good", "fail": "anomalous", "no_verdict": "none"}
            return [
                (seen["result_part"], *(word for name, word in verdicts.items() if seen[name]), seen["score"] / 2000)
                for seen in plc(self.modbus, "parts", first, end)
            ]
        if protocol == "OPC UA":
            found = results_of(controller(self.opcua, "parts", first, end, "s0"))
            return [(int(seen["PartId"]), seen["Verdict"], float(seen["Score"])) for seen in found]
        found = self.ask_http("parts", first, end, "s0")
        assert all((seen["status"] == 200) is (seen["verdict"] != "none") for seen in found)
        return [(int(seen["part"]), seen["verdict"], seen.get("score")) for seen in found]


def expected(first: int, end: int) -> list[tuple[int, str, float]]:
    numbers = range(first, end)
    return [(number, "anomalous" if score_of(number) > 0.5 else "good", score_of(number)) for number in numbers]


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@contextmanager
def webhook() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A real receiver; gives its port and what it has taken."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1], got
        server.shutdown()
        thread.join()


@contextmanager
def listening(port: int, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """A real broker; gives what it has passed on."""
    from paho.mqtt import client as paho

    got: list[dict[str, Any]] = []
    with broker(port, folder):
        listener, ready = paho.Client(paho.CallbackAPIVersion.VERSION2), threading.Event()
        listener.on_subscribe = lambda *_: ready.set()
        listener.on_message = lambda _client, _data, message: got.append(json.loads(message.payload))
        listener.connect("127.0.0.1", port)
        listener.loop_start()
        listener.subscribe("line/#", qos=1)
        assert ready.wait(30)
        yield got
        listener.loop_stop()


@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
def test_a_thousand_triggers_by_http_reach_a_real_broker_once_each(tmp_path: Path) -> None:
    pytest.importorskip("paho.mqtt.client")
    floor, port = Floor(tmp_path, stations=4, parts=250), free_port()
    floor.add("mqtt", f"mqtt://127.0.0.1:{port}/line/{{}}")
    seen: dict[str, list[dict[str, Any]]] = {}

    def inspect(station: str) -> None:
        seen[station] = floor.ask_http("parts", 0, 250, station)

    with listening(port, tmp_path) as got, running(floor.path):
        threads = [threading.Thread(target=inspect, args=(f"s{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: sum(body["kind"] == "result" for body in got) >= 1000)
        time.sleep(0.5)  # for one that would come twice
    for station in (f"s{number}" for number in range(4)):
        results = [body for body in got if body["kind"] == "result" and body["station"] == station]
        answers = [(int(body["part"]), body["verdict"], body["score"]) for body in seen[station]]
        assert answers == expected(0, 250)
        assert [(int(body["part"]), body["verdict"], body["score"]) for body in results] == expected(0, 250)
        assert [body["id"] for body in results] == [body["id"] for body in seen[station]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_that_triggers_again_while_busy_is_refused_and_gets_the_first_result(
    protocol: str, tmp_path: Path
) -> None:
    floor = Floor(tmp_path)
    with running(floor.path, 2.0):
        if protocol == "Modbus":
            (seen,) = plc(floor.modbus, "hurry", 4)
            assert (seen["result_part"], seen["pass"], seen["overruns"]) == (4, 1, 1)
        elif protocol == "OPC UA":
            done = controller(floor.opcua, "hurry", 4, "s0")
            assert done.returncode == 0, done.stderr
            refused, result = map(json.loads, done.stdout.splitlines())
            assert refused == ["", 1] and (result["PartId"], result["Verdict"]) == ("4", "good")
        else:
            refused, result = floor.ask_http("hurry", 4, "s0")
            assert (refused["status"], refused["verdict"], refused["cause"]) == (503, "none", "busy")
            assert (result["status"], result["part"], result["verdict"]) == (200, "4", "good")
        eventually(lambda: rows(tmp_path / "s0.csv")[-1:] == ["4"])
        time.sleep(0.7)
    assert rows(tmp_path / "s0.csv") == ["4"]


def test_an_http_client_that_dies_in_the_middle_leaves_a_line_for_the_next(tmp_path: Path) -> None:
    floor = Floor(tmp_path)
    with running(floor.path, 0.3):
        assert floor.inspect("HTTP", 0, 1) == expected(0, 1)
        assert floor.ask_http("die", 3, "s0") == []
        assert floor.inspect("HTTP", 4, 6) == expected(4, 6)
        eventually(lambda: rows(tmp_path / "s0.csv")[-1:] == ["5"])
    # The part of the client that died was inspected, or its trigger never came in.
    assert rows(tmp_path / "s0.csv") in (["0", "3", "4", "5"], ["0", "4", "5"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_source_that_vanishes_and_returns_gives_no_verdict_and_then_verdicts_again(
    protocol: str, tmp_path: Path
) -> None:
    floor = Floor(tmp_path, deadline=4000)
    with running(floor.path):
        assert floor.inspect(protocol, 0, 2) == expected(0, 2)
        (tmp_path / "in0").rename(tmp_path / "away")
        gone = floor.inspect(protocol, 2, 4)
        assert [(part, verdict) for part, verdict, _ in gone] == [(2, "none"), (3, "none")]
        assert all(not score or math.isnan(score) for _, _, score in gone)
        (tmp_path / "away").rename(tmp_path / "in0")
        assert floor.inspect(protocol, 4, 6) == expected(4, 6)
        eventually(lambda: rows(tmp_path / "s0.csv")[-1:] == ["5"])
    verdicts = {line["part"]: line["verdict"] for line in lines(tmp_path / "s0.csv") if line["kind"] == "result"}
    assert [verdicts[str(part)] for part in (2, 3)] == ["none", "none"] and len(verdicts) == 6


@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
def test_a_missed_deadline_is_no_verdict_on_every_output_and_stays_one(tmp_path: Path) -> None:
    """HTTP, Modbus, OPC UA, CSV, webhook and MQTT at once; the model takes five times as long as the deadline."""
    pytest.importorskip("paho.mqtt.client")
    floor, port = Floor(tmp_path, deadline=300), free_port()
    floor.add("mqtt", f"mqtt://127.0.0.1:{port}/line/{{}}")
    with webhook() as (hook, posted), listening(port, tmp_path) as published:
        floor.add("webhook", f"http://127.0.0.1:{hook}/parts")
        with running(floor.path, 1.5):
            (answer,) = floor.ask_http("parts", 1, 2, "s0")
            (shown,) = plc(floor.modbus, "parts", 2, 3)
            (event,) = results_of(controller(floor.opcua, "parts", 3, 4, "s0"))
            eventually(lambda: all(len(parts_of(got)) >= 3 for got in (posted, published)))
            time.sleep(2.0)  # for the scores that come too late
    assert (answer["status"], answer["verdict"], answer["cause"]) == (503, "none", "deadline")
    assert (shown["done"], shown["no_verdict"], shown["pass"], shown["fail"], shown["score"]) == (1, 1, 0, 0, 0)
    assert CAUSES[shown["cause"]] == "deadline" and shown["result_part"] == 2
    assert (event["Verdict"], event["Cause"], event["Score"]) == ("none", "deadline", "nan")
    for got in (posted, published):
        assert Counter(parts_of(got)) == {"1": 1, "2": 1, "3": 1}
        for body in (body for body in got if body["kind"] == "result"):
            assert (body["verdict"], body["cause"], body["is_anomalous"]) == ("none", "deadline", None)
            assert "score" not in body and "no result within the deadline of 300 ms" in body["error"]
    found = [line for line in lines(tmp_path / "s0.csv") if line["kind"] == "result"]
    assert [(line["part"], line["verdict"], line["score"], line["is_anomalous"]) for line in found] == [
        (part, "none", "", "") for part in ("1", "2", "3")
    ]


def parts_of(got: list[dict[str, Any]]) -> list[str]:
    return [body["part"] for body in got if body["kind"] == "result"]


def test_kill_9_is_said_by_the_first_message_of_every_output(tmp_path: Path) -> None:
    floor = Floor(tmp_path)
    with webhook() as (hook, posted):
        floor.add("webhook", f"http://127.0.0.1:{hook}/parts")
        with running(floor.path) as process:
            assert floor.inspect("OPC UA", 0, 2) == expected(0, 2)
            eventually(lambda: parts_of(posted) == ["0", "1"])
            process.kill()
            process.wait()
        posted.clear()
        with running(floor.path):
            first, second = results_of(controller(floor.opcua, "parts", 2, 4, "s0"))
            with urllib.request.urlopen(f"http://127.0.0.1:{floor.http}/", timeout=30) as answer:
                assert json.load(answer)["stations"][0]["restarted"] is True
            eventually(lambda: parts_of(posted)[-2:] == ["2", "3"])
    assert json.loads(first["ResultContent"])["restarted"] is True
    assert "restarted" not in json.loads(second["ResultContent"])
    started = posted[0] if posted[0]["kind"] == "started" else posted[1]  # after a result that may be sent again
    assert (started["kind"], started["restarted"], started["after"]) == ("started", True, "killed")
    assert next(body for body in posted if body.get("part") == "2")["restarted"] is True
