"""No result is lost or sent in a wrong order, however a receiver, its address or the disk misbehaves."""

import base64
import contextlib
import csv
import itertools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procon import ConfigError, Detector
from procon.line import sinks as sinks_module
from procon.line.arrivals import Folder
from procon.line.delivery import Delivery
from procon.line.outbox import Outbox, OutboxError
from procon.line.sinks import CsvSink, MqttSink, SinkError, WebhookSink
from tests.conftest import Run
from tests.disk import fill_disk, small_disk
from tests.line.test_watch import BROKER, Clock, Receiver, broker, eventually, free_port, put, run_line, watching

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    box = Outbox(tmp_path / "outbox.sqlite")
    yield box
    box.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


# ----------------------------------------------------------------------------------------------------------- addresses

BAD_HOSTS = ("", "[", "[::1", ":80", "a:99999", "a:0", "a:x", "a:-1", "a b", "a\nb", "\udcff", "ä", "a..b", "a" * 64)


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "a/b", "//a/b", "", " http://a/", *(f"http://{host}/b" for host in BAD_HOSTS)]
)
def test_a_webhook_is_a_web_address(url: str, inbox: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match="--webhook must be http://HOST/PATH or https://HOST/PATH, got '"):
        WebhookSink(url)
    code, _, err = run("watch", inbox, "--model", "m.procon", f"--webhook={url}")
    assert code == 2 and err.startswith("error: --webhook must be ") and "Traceback" not in err


@pytest.mark.parametrize(
    "url",
    [
        *("http://a/b", "mqtt://host", "mqtt:///topic", "mqtt://host/", "mqtt://host/a/#", "mqtt://host/+"),
        *(f"mqtts://{host}/b" for host in BAD_HOSTS),
    ],
)
def test_mqtt_has_a_host_and_a_topic(url: str, inbox: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match="--mqtt must be mqtt://HOST/TOPIC or mqtts://HOST/TOPIC, got '"):
        MqttSink(url)
    code, _, err = run("watch", inbox, "--model", "m.procon", f"--mqtt={url}")
    assert code == 2 and err.startswith("error: --mqtt must be ") and "Traceback" not in err


def test_good_addresses_are_taken_and_show_no_password() -> None:
    for url in ("http://a", "https://a.b:8443/c?d=e", "http://[::1]:80/x", "http://u:p%40ss@a/b", "http://a_b-c/%20"):
        assert "p%40ss" not in WebhookSink(url).name
    pytest.importorskip("paho.mqtt.client")
    for url in ("mqtt://a/b", "mqtts://user:p%40ss@a:1/b/c", "mqtt://[::1]/b"):
        assert "p%40ss" not in MqttSink(url).name


# ------------------------------------------------------------------------------------------------------------ webhooks


def answer_slowly(connection: socket.socket, data: bytes) -> None:
    """One byte at a time, more often than a timeout of the socket, for ever."""
    for place in itertools.cycle(range(len(data))):
        connection.sendall(data[place : place + 1])
        time.sleep(0.02)


def answer_forever(connection: socket.socket, data: bytes) -> None:
    while True:
        connection.sendall(data)


MISBEHAVIOURS: dict[str, Callable[[socket.socket], object]] = {
    "nonsense": lambda connection: connection.sendall(b"NONSENSE\r\n\r\n"),
    "no status": lambda connection: connection.sendall(b"HTTP/1.1 abc\r\n\r\n"),
    "binary": lambda connection: connection.sendall(bytes(range(256)) * 40),
    "endless line": lambda connection: answer_forever(connection, b"x" * 1000),
    "endless headers": lambda connection: answer_forever(connection, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200),
    "cut": lambda connection: connection.sendall(b"HTTP/1.1 2"),
    "closes": lambda connection: None,
    "resets": lambda connection: connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
    "hangs": lambda connection: time.sleep(3),
    "slow": lambda connection: answer_slowly(connection, b"HTTP"),
    "continue for ever": lambda connection: answer_forever(connection, CONTINUE),
    "slow continue": lambda connection: answer_slowly(connection, CONTINUE),
    "redirect": lambda connection: connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n"),
    "permanent redirect": lambda connection: connection.sendall(b"HTTP/1.1 308 Moved\r\nLocation: /other\r\n\r\n"),
    "early hints": lambda connection: connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "refuses": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n"),
}


@contextmanager
def raw_server(misbehave: Callable[[socket.socket], object]) -> Iterator[tuple[int, list[str]]]:
    """A server that misbehaves at its first request and answers well to all later ones; gives the ids that it took."""
    got: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(connection: socket.socket, number: int) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                request = b""
                while b"}" not in request:
                    request += connection.recv(65536)
                assert request.startswith(b"POST /results HTTP/1.1\r\n"), request
                if number == 0:
                    misbehave(connection)
                else:
                    got.append(json.loads(request.partition(b"\r\n\r\n")[2])["id"])
                    connection.sendall(OK)

        def serve() -> None:
            for number in itertools.count():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection, number), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], got
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize("kind", MISBEHAVIOURS)
def test_a_receiver_that_misbehaves_once_gets_everything_later(
    kind: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks_module, "TIMEOUT", 0.5)
    said, stop, news = list[str](), threading.Event(), threading.Event()
    with raw_server(MISBEHAVIOURS[kind]) as (port, got):
        sink = WebhookSink(f"http://127.0.0.1:{port}/results")
        for number in range(3):
            outbox.add({"id": str(number)}, [sink.name])
        delivery = Delivery(outbox, sink, first=0.01, longest=0.1, say=said.append)
        thread = threading.Thread(target=delivery.run, args=(stop, news))
        thread.start()
        try:
            eventually(lambda: outbox.pending() == {})
            assert thread.is_alive()
        finally:
            stop.set()
            thread.join()
    assert got == ["0", "1", "2"]
    assert len(said) == 2
    assert said[0].startswith(f"not delivered, stored and tried again: http://127.0.0.1:{port}/results: ")


def test_a_login_in_the_address_is_sent() -> None:
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(65536))
                connection.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        WebhookSink(f"http://line:p%40ss@127.0.0.1:{server.getsockname()[1]}/a?b=c").send({"id": "0"})
        thread.join()
    assert b"Authorization: Basic " + base64.b64encode(b"line:p@ss") in requests[0]
    assert requests[0].startswith(b"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")


# -------------------------------------------------------------------------------------------------------- MQTT brokers


@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
@pytest.mark.parametrize("kind", ["nonsense", "binary", "closes", "resets", "hangs", "slow"])
def test_what_only_seems_to_be_a_broker_gets_nothing_and_the_broker_after_it_everything(
    kind: str, outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paho = pytest.importorskip("paho.mqtt.client")
    monkeypatch.setattr(sinks_module, "TIMEOUT", 0.5)
    clock, got, ready = Clock(), list[str](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sink = MqttSink(f"mqtt://127.0.0.1:{port}/line")
        delivery = Delivery(outbox, sink, clock=clock)
        outbox.add({"id": "0"}, [sink.name])

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    MISBEHAVIOURS[kind](connection)

        thread = threading.Thread(target=serve)
        thread.start()
        assert delivery.step() == 1.0
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    monkeypatch.setattr(sinks_module, "TIMEOUT", 5.0)
    with broker(port, tmp_path):
        listener = paho.Client(paho.CallbackAPIVersion.VERSION2)
        listener.on_subscribe = lambda *_: ready.set()
        listener.on_message = lambda _client, _data, message: got.append(json.loads(message.payload)["id"])
        listener.connect("127.0.0.1", port)
        listener.loop_start()
        listener.subscribe("line", qos=1)
        assert ready.wait(30)
        clock.now += 60
        assert delivery.step() is None
        eventually(lambda: got == ["0"])
        listener.loop_stop()
        sink.close()


@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
def test_a_broker_that_refuses_the_login_is_asked_again(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setattr(sinks_module, "TIMEOUT", 2.0)
    port, clock = free_port(), Clock()
    sink = MqttSink(f"mqtt://line:secret@127.0.0.1:{port}/line")
    delivery = Delivery(outbox, sink, clock=clock)
    outbox.add({"id": "0"}, [sink.name])
    with broker(port, tmp_path, allow_anonymous=False):
        assert delivery.step() == 1.0
    clock.now += 60
    with broker(port, tmp_path):
        assert delivery.step() is None
        sink.close()


@pytest.mark.slow
@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
def test_a_broker_that_comes_and_goes_gets_every_result_of_a_triggered_line_once_and_in_order(tmp_path: Path) -> None:
    """A real line, a real PLC client and a real broker, which is away while half of the parts are inspected."""
    paho = pytest.importorskip("paho.mqtt.client")
    pytest.importorskip("pymodbus")
    from tests.line.stand_in import score_of, write_part
    from tests.line.test_modbus import assert_right, plc, running, write_line

    path, port = write_line(tmp_path)
    mqtt = free_port()
    path.write_text(path.read_text().replace('csv = "s0.csv"', f'mqtt = "mqtt://127.0.0.1:{mqtt}/line/s0"'))
    for number in range(30):
        write_part(tmp_path / "in0" / f"{number}.png", number)
    got: list[dict[str, Any]] = []

    @contextmanager
    def listening() -> Iterator[None]:
        with broker(mqtt, tmp_path):
            listener, ready = paho.Client(paho.CallbackAPIVersion.VERSION2), threading.Event()
            listener.on_subscribe = lambda *_: ready.set()
            listener.on_message = lambda _client, _data, message: got.append(json.loads(message.payload))
            listener.connect("127.0.0.1", mqtt)
            listener.loop_start()
            listener.subscribe("line/s0", qos=1)
            assert ready.wait(30)
            yield
            listener.loop_stop()

    with running(path):
        with listening():
            assert_right(plc(port, "parts", 0, 10), list(range(10)))
            eventually(lambda: len(got) >= 11)
        assert_right(plc(port, "parts", 10, 20), list(range(10, 20)))
        with listening():
            assert_right(plc(port, "parts", 20, 30), list(range(20, 30)))
            eventually(lambda: any(body.get("part") == "29" for body in got))
    assert got[0]["kind"] == "started" and got[0]["restarted"] is False
    results = {body["id"]: body for body in got if body["kind"] == "result"}  # a repeat has the same id
    assert [body["part"] for body in results.values()] == [str(number) for number in range(30)]
    assert all(body["score"] == score_of(int(body["part"])) for body in results.values())


# ------------------------------------------------------------------------------------------------------ the deliveries


@pytest.mark.parametrize("error", [OSError("odd"), ValueError("odd"), KeyError("odd"), RecursionError(), MemoryError()])
def test_no_exception_of_a_receiver_ends_the_delivery(
    error: Exception, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, receiver, said = Clock(), Receiver(), list[str]()
    delivery = Delivery(outbox, receiver, clock=clock, say=said.append)
    outbox.add({"id": "0"}, ["receiver"])

    def fail(_body: Mapping[str, Any]) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(receiver, "send", fail)
        assert delivery.step() == 1.0
    clock.now += 1
    assert delivery.step() is None
    assert receiver.got == ["0"] and outbox.pending() == {}
    assert said[0].startswith(f"not delivered, stored and tried again: receiver: {type(error).__name__}")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_delivery_that_ends_takes_the_process_down(detector: Detector, outbox: Outbox, inbox: Path) -> None:
    class Fatal(Receiver):
        def send(self, body: Mapping[str, Any]) -> None:
            raise SystemExit

    receiver = Fatal()
    outbox.add({"id": "0"}, [receiver.name])
    station = watching(Folder(inbox, 0.01), detector, outbox, [receiver])
    with pytest.raises(SinkError, match="the delivery to receiver has ended; start the line again"):
        run_line(station, threading.Event())


def test_an_event_that_was_sent_is_not_sent_again_when_the_outbox_cannot_be_written(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    delivery = Delivery(outbox, receiver)
    outbox.add({"id": "0"}, ["receiver"])

    def fail(_sink: str, _number: int) -> None:
        raise OutboxError("full")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "mark_delivered", fail)
        with pytest.raises(OutboxError):
            delivery.step()
    assert delivery.step() is None
    assert receiver.got == ["0"] and outbox.pending() == {}


# ------------------------------------------------------------------------------------------------------------ the disk


def test_a_line_that_does_not_fit_on_the_disk_is_not_begun() -> None:
    with small_disk() as disk:
        sink = CsvSink(disk / "scores.csv")
        sink.send({"id": "0", "source": "a" * 3000})
        before = (disk / "scores.csv").read_bytes()
        filler = fill_disk(disk)
        with pytest.raises(SinkError, match=r"scores.csv: No space left on device"):
            sink.send({"id": "1", "source": "b" * 3000})
        assert (disk / "scores.csv").read_bytes() == before
        filler.unlink()
        sink.send({"id": "1", "source": "b" * 3000})
        with (disk / "scores.csv").open(newline="") as stream:
            assert [row["id"] for row in csv.DictReader(stream)] == ["0", "1"]


def test_a_line_that_a_power_cut_left_incomplete_does_not_swallow_the_next(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "scores.csv")
    sink.send({"id": "0", "source": "a"})
    with (tmp_path / "scores.csv").open("ab") as stream:
        stream.write(b"1,2026-")
    sink.send({"id": "1", "source": "b"})
    with (tmp_path / "scores.csv").open(newline="") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ["0", "1", "1"]


def test_a_pipe_is_no_csv_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"--csv must be a file, got .*pipe, which is a pipe or a device"):
        CsvSink(tmp_path / "pipe")


def test_a_full_disk_is_waited_for(detector: Detector, inbox: Path) -> None:
    """Scoring and delivery stop while the outbox cannot be written, and nothing is lost or sent twice."""
    with small_disk("8m") as disk:
        box, receiver, stop, said = Outbox(disk / "o.sqlite"), Receiver(), threading.Event(), list[str]()
        station = watching(Folder(inbox, 0.01), detector, box, [receiver], say=said.append, first=0.01, longest=0.05)
        thread = threading.Thread(target=run_line, args=(station, stop))
        thread.start()
        try:
            put(inbox / "0.png", 0)
            eventually(lambda: len(receiver.got) == 1)
            filler = fill_disk(disk)
            for number in range(1, 40):
                put(inbox / f"{number}.png", number)
            eventually(lambda: bool(said))
            time.sleep(0.3)
            assert thread.is_alive()
            filler.unlink()
            eventually(lambda: len(receiver.got) == 40)
        finally:
            stop.set()
            thread.join()
            box.close()
        assert len(set(receiver.got)) == len(receiver.got) == 40
        assert "o.sqlite: database or disk is full; check the disk and its free space" in said[0]
