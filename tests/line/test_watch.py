"""Images are scored once they are complete, and no result is lost: not to a receiver that is down, not to a restart."""

import csv
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from procon import ConfigError, Detector, ImageError, MissingExtraError
from procon.cli import app
from procon.line import sinks as sinks_module
from procon.line.arrivals import Camera, Folder, is_camera
from procon.line.delivery import Deliveries, Delivery
from procon.line.engine import ProductionLine
from procon.line.models import LoadedModel, Slot, Turns
from procon.line.outbox import Key, Outbox
from procon.line.parts import Arrival, Deadlines, event_id
from procon.line.reporting import StationPlan
from procon.line.sinks import CsvSink, MqttSink, SinkError, WebhookSink
from procon.line.station import Station
from tests.conftest import part_pixels


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Receiver:
    """A sink that can be down."""

    def __init__(self, name: str = "receiver") -> None:
        self.name, self.down, self.got, self.tries = name, False, list[Any](), 0

    def send(self, body: Mapping[str, Any]) -> None:
        self.tries += 1
        if self.down:
            raise SinkError("receiver: down")
        self.got.append(body["id"])

    def close(self) -> None:
        pass


def put(path: Path, seed: int = 0, defect: bool = False) -> Path:
    Image.fromarray(part_pixels(seed, defect)).save(path)
    return path


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "did not happen within a minute"
        time.sleep(0.02)


def fixed_slot(detector: Any) -> Slot:
    """A model that stays as it is."""
    slot = Slot(Path("part.procon"))
    slot.current = LoadedModel(detector, "revision", Turns())
    return slot


def watching(
    source: Any,
    detector: Any,
    outbox: Outbox,
    sinks: list[Any],
    on_event: Callable[[dict[str, Any]], None] = lambda _body: None,
    *,
    every: float = 0.01,
    say: Callable[[str], None] = lambda _text: None,
    first: float = 1.0,
    longest: float = 60.0,
) -> Station:
    """The one station of procon watch, with a source and a model that are there already."""
    listener = SimpleNamespace(
        on_busy=lambda *_: None, on_result=lambda _, body: on_event(body), on_state=lambda *_: None
    )
    plan = StationPlan("", lambda: source, [fixed_slot(detector)], outbox, [sink.name for sink in sinks])
    plan.deliveries = Deliveries(outbox, sinks, first=first, longest=longest, say=say)
    plan.every, plan.announce, plan.listeners, plan.say = every, False, [listener], say
    return Station(plan, Deadlines())


def run_line(station: Station, stop: threading.Event) -> None:
    ProductionLine([station], station._deadlines).run(stop)


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


# ---------------------------------------------------------------------------------------------------- complete images


def names(arrivals: list[Arrival]) -> list[str]:
    return [Path(arrival.name).name for arrival in arrivals]


def test_a_file_is_scored_when_it_has_stayed_the_same(inbox: Path) -> None:
    clock = Clock()
    folder = Folder(inbox, 2.0, clock)
    data = put(inbox / "whole.png").read_bytes()
    (inbox / "whole.png").unlink()
    path = inbox / "a.png"
    path.write_bytes(data[:100])
    assert folder.poll(lambda key: False) == []
    clock.now += 5
    path.write_bytes(data[:200])  # still being written
    assert folder.poll(lambda key: False) == []
    clock.now += 1.9
    assert folder.poll(lambda key: False) == []
    clock.now += 0.1
    assert names(folder.poll(lambda key: False)) == ["a.png"]


def test_empty_files_temporary_names_and_finished_images_wait(inbox: Path) -> None:
    clock = Clock()
    folder = Folder(inbox, 1.0, clock)
    (inbox / "empty.png").touch()
    put(inbox / ".a.png")
    put(inbox / "b.png").rename(inbox / "b.png.part")
    put(inbox / "done.png")
    (inbox / "below").mkdir()
    put(inbox / "below" / "10.png")
    put(inbox / "below" / "2.png")
    done = [key for key in folder.files() if key[0].endswith("done.png")]
    folder.poll(done.__contains__)
    clock.now += 1
    assert names(folder.poll(done.__contains__)) == ["2.png", "10.png"]
    (inbox / "b.png.part").rename(inbox / "b.png")  # renamed into place: complete at once, and waits as long
    assert names(folder.poll(done.__contains__)) == ["2.png", "10.png"]
    clock.now += 1
    assert names(folder.poll(done.__contains__)) == ["b.png", "2.png", "10.png"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no such folder to watch; check the path"):
        Folder(tmp_path / "none", 1.0)


# --------------------------------------------------------------------------------------------------------- the outbox


def test_events_leave_in_order_and_only_when_all_have_them(outbox: Outbox) -> None:
    for number in range(3):
        outbox.add({"id": str(number)}, ["a", "b"])
    assert outbox.pending() == {"a": 3, "b": 3}
    first = outbox.next_event("a")
    assert first is not None and first.body == {"id": "0"}
    outbox.mark_delivered("a", first.number)
    second = outbox.next_event("b")
    assert second is not None and second.body == {"id": "0"}
    outbox.mark_delivered("b", second.number)
    assert outbox.pending() == {"a": 2, "b": 2}
    assert outbox._base.execute("SELECT COUNT(*) FROM events").fetchone() == (2,)


def test_an_event_and_its_image_are_stored_together_and_survive(tmp_path: Path) -> None:
    path, key = tmp_path / "box" / "o.sqlite", ("a.png", 10, 20)
    box = Outbox(path)
    assert box.is_new and not box.is_done(key)
    box.add({"id": "x", "score": 0.5}, ["a"], key)
    box.add({"id": "x", "score": 0.5}, ["a"], key)  # scored again after a crash: the same id
    box.close()
    again = Outbox(path)
    assert not again.is_new and again.is_done(key) and not again.is_done(("a.png", 11, 20))
    assert again.pending() == {"a": 1}
    with pytest.raises(ConfigError, match=r"cannot be used as an outbox \(.*locked\); is another watcher using it\?"):
        Outbox(path)
    again.close()


def test_a_file_that_is_no_outbox_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o").write_text("x" * 5000)
    with pytest.raises(ConfigError, match=r"is no outbox \(file is not a database\); name another file with --outbox"):
        Outbox(tmp_path / "o")


def test_waiting_doubles_up_to_a_limit_and_nothing_is_lost(outbox: Outbox) -> None:
    clock, receiver = Clock(), Receiver()
    delivery = Delivery(outbox, receiver, first=1.0, longest=5.0, clock=clock)
    for number in range(2):
        outbox.add({"id": str(number)}, ["receiver"])
    receiver.down = True
    waits = []
    for _ in range(5):
        wait = delivery.step()
        assert wait is not None
        waits.append(wait)
        assert delivery.step() == pytest.approx(wait)  # not due: no attempt
        clock.now += wait
    assert waits == [1, 2, 4, 5, 5]
    assert receiver.tries == 5
    receiver.down = False
    assert delivery.step() is None
    assert receiver.got == ["0", "1"] and outbox.pending() == {}


def test_a_clock_that_is_set_back_does_not_hold_events(outbox: Outbox) -> None:
    clock, receiver = Clock(), Receiver()
    delivery = Delivery(outbox, receiver, first=1.0, longest=5.0, clock=clock)
    outbox.add({"id": "0"}, ["receiver"])
    receiver.down = True
    delivery.step()
    clock.now -= 100_000
    assert delivery.step() == 5.0


# -------------------------------------------------------------------------------------------------------- the watcher


def test_every_image_has_one_event_with_its_prediction(detector: Detector, outbox: Outbox, inbox: Path) -> None:
    clock, receiver = Clock(), Receiver()
    seen: list[dict[str, Any]] = []
    watcher = watching(Folder(inbox, 1.0, clock), detector, outbox, [receiver], seen.append)
    put(inbox / "good.png", 50)
    put(inbox / "red.png", 51, defect=True)
    (inbox / "broken.png").write_bytes(b"not an image")
    assert watcher.step() == 0
    clock.now += 1
    assert watcher.step() == 3
    clock.now += 9
    assert watcher.step() == 0
    by_name = {Path(body["source"]).name: body for body in seen}
    expected = detector.predict(inbox / "red.png")
    assert by_name["red.png"]["is_anomalous"] is True and by_name["good.png"]["is_anomalous"] is False
    assert by_name["red.png"]["score"] == expected.score
    assert by_name["red.png"]["regions"] == [region.to_dict() for region in expected.regions]
    assert by_name["broken.png"]["error"].endswith("remove it or export it as PNG or JPEG")
    assert "score" not in by_name["broken.png"]
    Delivery(outbox, receiver).step()
    assert receiver.got == [body["id"] for body in seen]
    put(inbox / "good.png", 52)  # overwritten: another image under the same name
    watcher.step()
    clock.now += 1
    assert watcher.step() == 1
    assert seen[-1]["id"] != by_name["good.png"]["id"]


def test_ids_tell_files_apart_and_repeats_not() -> None:
    one = Arrival("a", "a", ("a", 1, 2))
    assert event_id(one) == event_id(Arrival("a", "a", ("a", 1, 2)))
    assert event_id(one) != event_id(Arrival("a", "a", ("a", 1, 3)))
    assert event_id(Arrival("a", "a")) != event_id(Arrival("a", "a"))
    assert len(event_id(one)) == len(event_id(Arrival("a", "a"))) == 32


# ---------------------------------------------------------------------------------------------------------- receivers


def test_csv_has_a_header_once_and_a_line_per_event(tmp_path: Path) -> None:
    path = tmp_path / "new" / "scores.csv"
    for number in range(2):  # two processes, one after the other
        CsvSink(path).send({"id": str(number), "source": "a,b.png", "score": 0.25, "regions": [{}, {}]})
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["id"], row["source"], row["score"], row["regions"]) for row in rows] == [
        ("0", "a,b.png", "0.25", "2"),
        ("1", "a,b.png", "0.25", "2"),
    ]
    with pytest.raises(ConfigError, match="--csv must be a file, got the folder"):
        CsvSink(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=r"File exists|Not a directory"):
        CsvSink(tmp_path / "file" / "scores.csv").send({"id": "0"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http_server(port: int, answers: list[int]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """A real server; ``answers`` are the codes of its first answers, then 200. Gives what it was sent and took."""
    got: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = answers.pop(0) if answers else 200
            if code == 200:
                got.append((self.headers["Idempotency-Key"], body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_receiver_that_is_down_first_gets_everything_in_order(
    detector: Detector, outbox: Outbox, inbox: Path
) -> None:
    port, stop, said = free_port(), threading.Event(), list[str]()
    webhook = WebhookSink(f"http://127.0.0.1:{port}/results")
    station = watching(Folder(inbox, 0.01), detector, outbox, [webhook], say=said.append, first=0.01, longest=0.1)
    thread = threading.Thread(target=run_line, args=(station, stop))
    thread.start()
    try:
        for number in range(3):
            put(inbox / f"{number}.png", number)
            eventually(lambda number=number: outbox.pending().get(webhook.name, 0) == number + 1)  # type: ignore[misc]
        eventually(lambda: bool(said))
        with http_server(port, [503, 500]) as got:
            eventually(lambda: outbox.pending() == {})
            put(inbox / "3.png", 3)
            eventually(lambda: len(got) == 4)
    finally:
        stop.set()
        thread.join()
    assert [Path(body["source"]).name for _, body in got] == ["0.png", "1.png", "2.png", "3.png"]
    assert all(key == body["id"] for key, body in got)
    assert len({key for key, _ in got}) == 4
    assert said[0].startswith(f"not delivered, stored and tried again: http://127.0.0.1:{port}/results: ")
    assert said[1] == f"{webhook.name}: takes events again"
    assert len(said) == 2


def test_a_folder_that_goes_away_is_waited_for(detector: Detector, outbox: Outbox, inbox: Path) -> None:
    stop, said, receiver = threading.Event(), list[str](), Receiver()
    station = watching(Folder(inbox, 0.01), detector, outbox, [receiver], say=said.append)
    inbox.rmdir()
    thread = threading.Thread(target=run_line, args=(station, stop))
    thread.start()
    try:
        eventually(lambda: bool(said))
        inbox.mkdir()
        put(inbox / "a.png")
        eventually(lambda: len(receiver.got) == 1)
    finally:
        stop.set()
        thread.join()
    assert said == [f"waiting: {inbox}: no such folder; check the path"]


def test_errors_of_the_system_while_looking_are_waited_for(
    detector: Detector, outbox: Outbox, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, said, receiver = threading.Event(), list[str](), Receiver()
    folder = Folder(inbox, 0.01)
    put(inbox / "a.png")
    find_files, failures = folder.files, [OSError(errno.EIO, "Input/output error", str(inbox))] * 3

    def fail_first() -> list[Key]:
        if failures:
            raise failures.pop()
        return find_files()

    monkeypatch.setattr(folder, "files", fail_first)
    station = watching(folder, detector, outbox, [receiver], say=said.append)
    thread = threading.Thread(target=run_line, args=(station, stop))
    thread.start()
    try:
        eventually(lambda: len(receiver.got) == 1 or not thread.is_alive())
    finally:
        stop.set()
        thread.join()
    assert said == [f"waiting: {inbox}: Input/output error"]
    assert len(receiver.got) == 1


def test_a_link_that_leads_nowhere_or_to_itself_is_passed_over(inbox: Path) -> None:
    (inbox / "loop.png").symlink_to("loop.png")
    (inbox / "nowhere.png").symlink_to("missing")
    put(inbox / "a.png")
    assert [Path(key[0]).name for key in Folder(inbox, 0.1).files()] == ["a.png"]


def test_mqtt_without_its_library_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    with pytest.raises(MissingExtraError, match=r"needs paho-mqtt; install it with: pip install 'procon\[mqtt\]'"):
        MqttSink("mqtt://host/topic")


BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


@contextmanager
def broker(port: int, folder: Path, *, allow_anonymous: bool = True) -> Iterator[None]:
    """A real mosquitto."""
    assert BROKER is not None
    settings = folder / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous {str(allow_anonymous).lower()}\n")
    process = subprocess.Popen([BROKER, "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(BROKER is None, reason="needs mosquitto")
def test_a_broker_that_comes_and_goes_gets_everything(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paho = pytest.importorskip("paho.mqtt.client")
    monkeypatch.setattr(sinks_module, "TIMEOUT", 2.0)
    port = free_port()
    sink = MqttSink(f"mqtt://127.0.0.1:{port}/line/1")
    clock = Clock()
    delivery = Delivery(outbox, sink, clock=clock)
    outbox.add({"id": "0"}, [sink.name])
    assert delivery.step() == 1.0  # nobody there yet
    got: list[str] = []
    for number in (1, 2):
        with broker(port, tmp_path):
            listener = paho.Client(paho.CallbackAPIVersion.VERSION2)
            ready = threading.Event()
            listener.on_subscribe = lambda *_, ready=ready: ready.set()
            listener.on_message = lambda _client, _data, message: got.append(json.loads(message.payload)["id"])
            listener.connect("127.0.0.1", port)
            listener.loop_start()
            listener.subscribe("line/1", qos=1)
            assert ready.wait(30)
            outbox.add({"id": str(number)}, [sink.name])
            clock.now += 60
            while delivery.step() is not None:
                clock.now += 60
            eventually(lambda number=number: str(number) in got)  # type: ignore[misc]
            listener.loop_stop()
    sink.close()
    assert list(dict.fromkeys(got)) == ["0", "1", "2"]  # a repeat is allowed, a loss is not
    assert outbox.pending() == {}


# ------------------------------------------------------------------------------------------------------------ cameras


class FakeCapture:
    """What OpenCV would give for a camera with one blue picture."""

    def __init__(self, source: int | str) -> None:
        self.source, self.open, self.pictures = source, source != "rtsp://nowhere", 1

    def isOpened(self) -> bool:  # noqa: N802
        return self.open

    def grab(self) -> bool:
        return True

    def read(self) -> tuple[bool, Any]:
        self.pictures -= 1
        return self.pictures >= 0, np.full((96, 80, 3), (200, 10, 20), np.uint8)

    def release(self) -> None:
        self.open = False


@pytest.fixture
def fake_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(VideoCapture=FakeCapture, COLOR_BGR2RGB=4, cvtColor=lambda pixels, _: pixels[:, :, ::-1])
    monkeypatch.setitem(sys.modules, "cv2", fake)


@pytest.mark.usefixtures("fake_opencv")
def test_frames_are_rgb_and_a_silent_camera_is_an_error(detector: Detector, outbox: Outbox) -> None:
    camera = Camera("/dev/video3")
    assert camera._capture.source == 3
    receiver = Receiver()
    seen: list[dict[str, Any]] = []
    watcher = watching(camera, detector, outbox, [receiver], seen.append)
    assert watcher.step() == 1
    assert seen[0]["source"] == "/dev/video3" and seen[0]["score"] > 0
    expected = detector.predict(np.full((96, 80, 3), (20, 10, 200), np.uint8))
    assert seen[0]["score"] == expected.score
    with pytest.raises(ImageError, match="/dev/video3: gave no picture; check the camera and its cable"):
        watcher.step()
    with pytest.raises(ImageError, match="rtsp://nowhere: cannot be opened; check the address"):
        Camera("rtsp://nowhere")


def test_a_camera_without_opencv_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(
        MissingExtraError, match=r"a camera needs OpenCV; install it with: pip install 'procon\[camera\]'"
    ):
        Camera("rtsp://line-1/stream")


def test_what_is_a_camera() -> None:
    assert [is_camera(name) for name in ("rtsp://a", "/dev/video0", "parts/new", "/dev/shm/parts")] == [
        True,
        True,
        False,
        False,
    ]


ODD_NAMES = {
    b"\xff\xfe.png": "\\xff\\xfe.png",
    b"line\nbreak.png": "line\\x0abreak.png",
    b"a\x1b[31m\x07.png": "a\\x1b[31m\\x07.png",
    "rtl\u202egnp.png".encode(): "rtl\\u202egnp.png",
    b"[red] 'a', \"b\";.png": "[red] 'a', \"b\";.png",
    "teil-ä-部.png".encode(): "teil-ä-部.png",
    b"\xe4.png": "\\xe4.png",
    b"x" * 250 + b".png": "x" * 250 + ".png",
    b"%s{0}$HOME.png": "%s{0}$HOME.png",
}


def test_every_name_is_scored_once_and_shown_escaped(detector: Detector, inbox: Path, tmp_path: Path) -> None:
    """The program itself, started twice in a folder with names that are bytes; one file cannot be read."""
    model, table, box = detector.save(tmp_path / "a.procon"), tmp_path / "scores.csv", tmp_path / "o.sqlite"
    data = put(tmp_path / "a.png", 1).read_bytes()
    for name in ODD_NAMES:
        (inbox / os.fsdecode(name)).write_bytes(data if name != b"\xe4.png" else b"no image")
    port = free_port()
    command = [sys.executable, "-m", "procon", "watch", str(inbox), "--model", str(model), "--existing"]
    command += ["--csv", str(table), "--outbox", str(box), "--every", "0.02", "--settle", "0.02"]
    command += ["--webhook", f"http://127.0.0.1:{port}/"]
    with http_server(port, []) as got:
        for _ in range(2):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stderr is not None and b"watching" in process.stderr.readline()
            eventually(lambda: len(got) == len(ODD_NAMES) or process.poll() is not None)  # noqa: B023
            time.sleep(0.5)
            process.terminate()
            out, err = process.communicate()
            assert process.returncode == 0 and b"Traceback" not in err, err.decode()
    expected = sorted(f"{inbox}/{shown}" for shown in ODD_NAMES.values())
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["source"] for row in rows) == sorted(body["source"] for _, body in got) == expected
    assert [row["source"] for row in rows if row["error"]] == [f"{inbox}/\\xe4.png"]
    assert all(row["error"].isprintable() for row in rows)
    assert out == b""  # the second start scores nothing again


# ------------------------------------------------------------------------------------------------------- command line


def test_the_command_line_says_what_is_wrong(inbox: Path) -> None:
    for arguments, message in (
        ([], "results must go somewhere: give --csv FILE, --webhook URL or --mqtt URL"),
        (["--csv", "a.csv", "--every", "0"], "--every must be a number of seconds above 0 and at most a day, got 0.0"),
        (
            ["--webhook", "nowhere"],
            "--webhook must be http://HOST/PATH or https://HOST/PATH, got 'nowhere': its scheme is ''",
        ),
    ):
        result = CliRunner().invoke(app, ["watch", str(inbox), "--model", "m.procon", *arguments])
        assert str(result.exception) == message


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "scipy", "onnx"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from procon.cli import main
main()
"""


def test_a_watcher_is_killed_and_started_again_without_loss(detector: Detector, inbox: Path, tmp_path: Path) -> None:
    """The program itself, from a first start to an abrupt end, then images while it is down, then a second start."""
    from procon.deploy.export import export

    folder = export(detector, tmp_path / "part", measure_memory=False).folder
    put(inbox / "before.png", 1)
    table = tmp_path / "scores.csv"
    command = [sys.executable, "-c", WITHOUT_TORCH, "watch", str(inbox), "--model", str(folder)]
    command += ["--csv", str(table), "--outbox", str(tmp_path / "o.sqlite"), "--every", "0.02", "--settle", "0.02"]

    def rows() -> list[str]:
        if not table.exists():
            return []
        with table.open() as stream:
            return [Path(row["source"]).name for row in csv.DictReader(stream)]

    for round_, (name, end) in enumerate((("1.png", "kill"), ("2.png", "terminate"))):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None and process.stdout is not None
        process.stdout.close()  # as with "| head": nobody reads what it prints
        try:
            if round_ == 0:
                assert process.stderr.readline().startswith(f"watching {inbox}")
                put(inbox / name, 2)
            eventually(lambda name=name: name in rows())  # type: ignore[misc]
        finally:
            getattr(process, end)()
            process.stderr.close()
            code = process.wait()
        put(inbox / "2.png", 3)
    assert code == 0
    # At least once: a kill between the delivery of a result and the note of it delivers that one again.
    assert list(dict.fromkeys(rows())) == ["1.png", "2.png"]
