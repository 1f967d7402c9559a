"""A part without a verdict is never good, a deadline holds, and one station leaves the others alone."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procon.errors import ImageError, ProconError
from procon.line.arrivals import NamedImages, Pushed, Source
from procon.line.delivery import Deliveries
from procon.line.engine import ProductionLine
from procon.line.models import LineModels, LoadedModel, Slot, Turns
from procon.line.outbox import Outbox, OutboxError
from procon.line.parts import Arrival, BusyError, Deadlines, Trigger, verdict_of
from procon.line.reporting import StationPlan
from procon.line.station import Station
from tests.line.stand_in import StandIn, score_of, write_part
from tests.line.test_watch import Receiver, eventually


class Heard:
    """A live output that remembers what it was told."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.states: list[tuple[str, str]] = []

    def on_busy(self, _station: Any, _part: Any) -> None:
        pass

    def on_result(self, _station: Any, body: dict[str, Any]) -> None:
        self.results.append(body)

    def on_state(self, _station: Any, state: str, reason: str) -> None:
        self.states.append((state, reason))


class Bodies(Receiver):
    def send(self, body: Any) -> None:
        super().send(body)
        self.got[-1] = dict(body)


class Rig:
    """Stations on one line that runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.deadlines, self.stop = folder, Deadlines(), threading.Event()
        self.stations: list[Station] = []
        self.said: list[str] = []
        self.turns = Turns()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def add(
        self, source: Callable[[], Source], model: StandIn | None = None, name: str = "top", **plan: Any
    ) -> tuple[Station, Heard, Bodies]:
        receiver, heard, outbox = Bodies(), Heard(), Outbox(self.folder / f"{name}.sqlite")
        outbox._base.execute("PRAGMA synchronous = OFF")  # a busy disk must not make these tests slow
        slot = Slot(Path("stand-in.procon"))
        slot.current = None if model is None else LoadedModel(model, "0123", self.turns)
        settings: dict[str, Any] = {"triggered": True, "deadline": 5.0, "every": 0.01, "say": self.said.append, **plan}
        made = StationPlan(name, source, [slot], outbox, [receiver.name], listeners=[heard], **settings)
        made.deliveries = Deliveries(outbox, [receiver], first=0.01, longest=0.1, say=self.said.append)
        station = Station(made, self.deadlines)
        self.stations.append(station)
        return station, heard, receiver

    def _run(self) -> None:
        try:
            ProductionLine(self.stations, self.deadlines).run(self.stop)
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()
        eventually(lambda: all(station.state != "loading" for station in self.stations))

    def end(self) -> None:
        self.stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for station in self.stations:
            station.plan.outbox.close()
        assert self.error is None


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(20):
        write_part(folder / f"{number}.png", number)
    return folder


def named(folder: Path) -> Callable[[], Source]:
    return lambda: NamedImages(folder, "{part}.png", 0.0)


def result_of(station: Station, part: str, **more: Any) -> dict[str, Any]:
    body = station.trigger(Trigger(part, **more)).wait(30)
    assert body is not None
    return body


def results(bodies: list[Any]) -> list[dict[str, Any]]:
    return [body for body in bodies if body["kind"] == "result"]


# ------------------------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"score": 0.1, "is_anomalous": False}, "good"),
        ({"score": 0.9, "is_anomalous": True}, "anomalous"),
        ({"score": 0.1, "is_anomalous": None}, "none"),
        ({"score": float("nan"), "is_anomalous": False}, "none"),
        ({"score": float("inf"), "is_anomalous": True}, "none"),
        ({"score": None, "is_anomalous": False}, "none"),
        ({"score": 0.1, "is_anomalous": 0}, "none"),
        ({"is_anomalous": False}, "none"),
        ({"score": 0.1, "is_anomalous": False, "error": "x"}, "none"),
        ({"score": 0.1, "is_anomalous": False, "cause": "deadline"}, "none"),
        ({}, "none"),
    ],
)
def test_only_a_finite_score_below_its_threshold_is_good(facts: dict[str, Any], verdict: str) -> None:
    assert verdict_of(facts) == verdict


def test_every_trigger_has_its_own_result_on_every_output(rig: Rig, parts: Path) -> None:
    station, heard, receiver = rig.add(named(parts), StandIn())
    rig.start()
    for number in range(20):
        body = result_of(station, str(number))
        assert (body["part"], body["score"]) == (str(number), score_of(number))
        assert body["verdict"] == ("anomalous" if score_of(number) > 0.5 else "good")
    eventually(lambda: len(results(receiver.got)) == 20)
    assert [body["part"] for body in results(receiver.got)] == [str(number) for number in range(20)]
    assert heard.results == results(receiver.got)


def test_a_score_that_is_no_number_is_no_verdict_and_valid_json(rig: Rig, parts: Path) -> None:
    class NoNumber(StandIn):
        def measure(self, inputs: Any, size: tuple[int, int]) -> Any:
            return [measured._replace(score=float("nan")) for measured in super().measure(inputs, size)]

    station, _, receiver = rig.add(named(parts), NoNumber())
    rig.start()
    body = result_of(station, "1")
    assert (body["verdict"], body["is_anomalous"], body["score"], body["cause"]) == ("none", None, None, "model")
    eventually(lambda: len(results(receiver.got)) == 1)
    json.loads(json.dumps(body, allow_nan=False))


def test_an_image_that_is_missing_damaged_or_outside_is_no_verdict(rig: Rig, parts: Path) -> None:
    (parts / "broken.png").write_bytes(b"not an image")
    station, _, _ = rig.add(named(parts), StandIn(), deadline=1.0)
    rig.start()
    for part, words in (
        ("broken", "is not an image Pillow can read"),
        ("../../etc/passwd", "must name an image in"),
        ("/etc/passwd", "must name an image in"),
        ("missing", "no"),
    ):
        body = result_of(station, part)
        assert body["verdict"] == "none" and words in body["error"] and "score" not in body
    assert result_of(station, "1")["score"] == score_of(1)


def test_an_image_may_come_after_its_trigger(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), StandIn())
    rig.start()
    part = station.trigger(Trigger("77"))
    assert part.wait(0.1) is None
    write_part(parts / "77.png", 77)
    body = part.wait(30)
    assert body is not None and body["score"] == score_of(77)


def test_pushed_images_are_scored_and_a_missing_one_is_said(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(Pushed, StandIn())
    rig.start()
    assert result_of(station, "a", image=(parts / "3.png").read_bytes())["score"] == score_of(3)
    for image in (None, b"", b"nonsense", (parts / "3.png").read_bytes()[:60]):
        assert result_of(station, "a", image=image)["cause"] == "image"


# ----------------------------------------------------------------------------------------------------------- deadlines


def test_a_late_verdict_is_dropped_everywhere(rig: Rig, parts: Path) -> None:
    """The model takes longer than the deadline: no verdict in time, and the late score on no output."""
    model = StandIn(1.5)
    station, heard, receiver = rig.add(named(parts), model, deadline=0.5)
    rig.start()
    begun = time.monotonic()
    body = result_of(station, "1")
    assert 0.4 < time.monotonic() - begun < 1.4
    assert (body["verdict"], body["cause"]) == ("none", "deadline")
    assert "no result within the deadline of 500 ms" in body["error"]
    model.seconds = 0.0
    time.sleep(1.2)
    assert result_of(station, "2")["score"] == score_of(2)
    eventually(lambda: len(results(receiver.got)) == 2)
    assert [body["part"] for body in heard.results] == ["1", "2"]
    assert heard.results == results(receiver.got)


def test_a_verdict_that_was_stored_but_not_said_in_time_is_stored_as_none(
    rig: Rig, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow: the verdict is in the outbox when the deadline passes, held, and is replaced."""
    station, heard, receiver = rig.add(named(parts), StandIn(), deadline=0.5)
    outbox, add = station.plan.outbox, station.plan.outbox.add

    def add_slowly(*arguments: Any, **named: Any) -> None:
        add(*arguments, **named)
        if named.get("hold"):
            time.sleep(1.0)

    rig.start()
    monkeypatch.setattr(outbox, "add", add_slowly)
    assert result_of(station, "1")["cause"] == "deadline"
    eventually(lambda: len(results(receiver.got)) == 1)
    time.sleep(0.8)
    assert [(body["verdict"], body["cause"]) for body in results(receiver.got)] == [("none", "deadline")]
    assert heard.results == results(receiver.got) and outbox.pending() == {}


def test_a_full_disk_gives_no_verdict_and_the_record_comes_later(
    rig: Rig, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    station, heard, receiver = rig.add(named(parts), StandIn(), deadline=0.5)
    rig.start()

    def fail(*_arguments: Any, **_named: Any) -> None:
        raise OutboxError("top.sqlite: database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(station.plan.outbox, "add", fail)
        for part in ("1", "2"):
            body = result_of(station, part)
            assert body["verdict"] == "none" and body["cause"] in ("deadline", "fault")
        assert station.state == "error" and "disk is full" in station.fault
    eventually(lambda: station.state == "ready")
    eventually(lambda: len(results(receiver.got)) == 2)
    assert result_of(station, "3")["verdict"] != "none"
    assert [body["part"] for body in heard.results] == ["1", "2", "3"]


# ---------------------------------------------------------------------------------------------------------- handshakes


def test_a_trigger_while_busy_is_refused_and_changes_nothing(rig: Rig, parts: Path) -> None:
    station, heard, _ = rig.add(named(parts), StandIn(0.3))
    rig.start()
    part = station.trigger(Trigger("1"))
    with pytest.raises(BusyError, match="top: is busy with part '1'; trigger again when it is done"):
        station.trigger(Trigger("2"))
    body = part.wait(30)
    assert body is not None and body["part"] == "1"
    assert [body["part"] for body in heard.results] == ["1"]


def test_a_paused_station_answers_no_verdict_until_it_goes_on(rig: Rig, parts: Path) -> None:
    station, heard, _ = rig.add(named(parts), StandIn())
    rig.start()
    station.pause()
    assert station.state == "paused" and result_of(station, "1")["cause"] == "paused"
    station.resume()
    assert result_of(station, "4")["verdict"] == "good"
    assert [state for state, _ in heard.states][-2:] == ["paused", "ready"]


def test_a_job_that_is_not_there_is_no_verdict(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), StandIn())
    rig.start()
    body = result_of(station, "1", job=7)
    assert body["verdict"] == "none" and "job must be 1 to 1, got 7" in body["error"]
    with pytest.raises(ProconError, match="top: job must be 1 to 1, got 2"):
        station.select(2)


# -------------------------------------------------------------------------------------------------------------- faults


def test_a_source_that_vanishes_and_returns(rig: Rig, parts: Path) -> None:
    class Flaky(Pushed):
        gone = True

        def take(self, trigger: Trigger, until: float) -> Arrival:
            if Flaky.gone:
                raise ImageError("rtsp://camera: gave no picture; check the camera and its cable")
            return super().take(trigger, until)

    station, _, _ = rig.add(Flaky, StandIn())
    rig.start()
    image = (parts / "1.png").read_bytes()
    assert result_of(station, "1", image=image)["error"].startswith("rtsp://camera: gave no picture")
    Flaky.gone = False
    assert result_of(station, "2", image=image)["score"] == score_of(1)


def test_a_source_that_cannot_be_opened_is_tried_again_and_leaves_the_others_alone(rig: Rig, parts: Path) -> None:
    tries: list[int] = []

    def open_late() -> Source:
        tries.append(1)
        if len(tries) < 5:
            raise ImageError("rtsp://camera: cannot be opened; check the address")
        return NamedImages(parts, "{part}.png", 0.0)

    bad, heard, receiver = rig.add(open_late, StandIn(), "bad", every=0.2)
    good, _, _ = rig.add(named(parts), StandIn(), "good")
    rig.start()
    body = result_of(bad, "1")
    assert (body["verdict"], body["cause"]) == ("none", "fault") and "rtsp://camera" in body["error"]
    assert result_of(good, "4")["verdict"] == "good"
    eventually(lambda: bad.state == "ready")
    assert result_of(bad, "4")["verdict"] == "good"
    assert [state for state, _ in heard.states] == ["error", "ready"]
    eventually(lambda: len(receiver.got) == 5)
    assert [body["kind"] for body in receiver.got] == ["started", "fault", "result", "recovered", "result"]
    assert "bad: waiting: rtsp://camera: cannot be opened; check the address" in rig.said


def test_a_model_that_fails_gives_no_verdict_and_its_station_starts_again(rig: Rig, parts: Path) -> None:
    failing: list[int] = [1]

    def fail_once() -> None:
        if failing:
            failing.pop()
            raise RuntimeError("CUDA error: device-side assert")

    station, _, _ = rig.add(named(parts), StandIn(on_measure=fail_once))
    other, _, _ = rig.add(named(parts), StandIn(), "other")
    rig.start()
    body = result_of(station, "1")
    assert (body["verdict"], body["cause"]) == ("none", "internal") and "CUDA error" in body["error"]
    eventually(lambda: station.state == "error")
    assert result_of(station, "2")["verdict"] == "none"
    assert result_of(other, "4")["verdict"] == "good"
    eventually(lambda: station.state == "ready")
    assert result_of(station, "4")["verdict"] == "good"


def test_a_station_that_is_stuck_is_restarted_alone(rig: Rig, parts: Path) -> None:
    held = threading.Event()

    class Stuck(NamedImages):
        def take(self, trigger: Trigger, until: float) -> Arrival:
            if trigger.part == "1":
                held.wait(20)
            return super().take(trigger, until)

    station, heard, _ = rig.add(lambda: Stuck(parts, "{part}.png", 0.0), StandIn(), deadline=0.5, stuck=0.5)
    rig.start()
    assert result_of(station, "1")["cause"] == "deadline"
    eventually(lambda: station.restarts == 1)
    assert any("top: restarted: no sign of life" in text for text in rig.said)
    eventually(lambda: station.state == "ready")
    assert result_of(station, "2")["score"] == score_of(2)
    held.set()  # the old thread wakes up, and says nothing
    time.sleep(0.2)
    assert [body["part"] for body in heard.results] == ["1", "2"]
    assert result_of(station, "3")["score"] == score_of(3)


def test_a_model_that_is_gone_or_not_loaded_yet_is_no_verdict(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), None)
    station.slot.error = "part.procon: no such model file or folder; check the path"
    rig.start()
    body = result_of(station, "1")
    assert body["verdict"] == "none" and "no such model file" in body["error"]
    station.slot.current, station.slot.error = LoadedModel(StandIn(), "0123", rig.turns), None
    eventually(lambda: station.state == "ready")
    assert result_of(station, "4")["verdict"] == "good"


def test_an_output_that_fails_keeps_no_result_from_the_others(rig: Rig, parts: Path) -> None:
    class Failing(Heard):
        def on_busy(self, _station: Any, _part: Any) -> None:
            raise RuntimeError("odd")

        def on_result(self, _station: Any, body: dict[str, Any]) -> None:
            raise RuntimeError("odd")

    station, heard, receiver = rig.add(named(parts), StandIn())
    station.plan.listeners.insert(0, Failing())
    rig.start()
    assert result_of(station, "4")["verdict"] == "good" and result_of(station, "5")["part"] == "5"
    eventually(lambda: len(results(receiver.got)) == 2)
    assert [body["part"] for body in heard.results] == ["4", "5"]
    assert "top: Failing did not take on_result: RuntimeError: odd; report this" in rig.said


def test_a_trigger_right_after_the_model_was_loaded_has_a_source(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), None)
    rig._thread.start()
    time.sleep(0.15)  # the station waits for triggers without a source
    station.slot.current = LoadedModel(StandIn(), "0123", rig.turns)
    assert result_of(station, "4")["verdict"] == "good"


def test_the_revision_is_that_of_the_model_that_scored(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(named(parts), None)

    def replace() -> None:
        station.slot.current = LoadedModel(StandIn(), "second", rig.turns)

    station.slot.current = LoadedModel(StandIn(on_measure=replace), "first", rig.turns)
    rig.start()
    assert [result_of(station, "4")["model"] for _ in range(2)] == ["first", "second"]


# --------------------------------------------------------------------------------------------------------------- turns


def test_stations_take_turns_on_the_device(rig: Rig, parts: Path) -> None:
    """Two stations with a backlog get every other turn, whoever came first."""
    order: list[str] = []

    class Endless(Pushed):
        def __init__(self) -> None:
            self.sent = 0

        def poll(self, is_done: Any) -> list[Arrival]:
            self.sent += 1
            return [Arrival(parts / f"{number}.png", str(number)) for number in range(20)] if self.sent == 1 else []

    for name in ("a", "b"):
        rig.add(Endless, StandIn(0.01, lambda name=name: order.append(name)), name, triggered=False)  # type: ignore[misc]
    rig.start()
    eventually(lambda: len(order) == 40)
    together = order[order.index("b" if order[0] == "a" else "a") : 36]
    assert all(first != second for first, second in zip(together[:20:2], together[1:20:2], strict=True))


# -------------------------------------------------------------------------------------------------------------- models


def test_a_full_disk_at_the_end_leaves_no_station_running(tmp_path: Path) -> None:
    """The first station cannot note that it was stopped; the second must still be stopped in order."""
    rig, stop, said = Rig(tmp_path), threading.Event(), list[str]()
    for name in ("top", "side"):
        rig.add(Pushed, StandIn(), name=name)
    stopped, servers = list[str](), [Recorder("modbus"), Recorder("http")]
    line = ProductionLine(rig.stations, rig.deadlines, servers=servers, say=said.append)
    rig.stations[0].plan.outbox.end_run = raise_full  # type: ignore[method-assign]
    rig.stations[1].plan.outbox.end_run = lambda: stopped.append("side")  # type: ignore[method-assign]
    threading.Timer(0.5, stop.set).start()
    line.run(stop)
    assert stopped == ["side"] and [server.stopped for server in servers] == [1, 1]
    assert said == ["not stopped in order: top.sqlite: database or disk is full"]
    assert [station.state for station in rig.stations] == ["stopped", "stopped"]
    rig.end()


def raise_full() -> None:
    raise OutboxError("top.sqlite: database or disk is full")


class Recorder:
    """A server that counts how often it was stopped."""

    def __init__(self, name: str) -> None:
        self.name, self.stopped = name, 0

    def start(self) -> None:
        pass

    def check(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("broken", [LineModels, Deadlines])
def test_a_thread_that_all_stations_need_takes_the_process_down(
    broken: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it no changed model would be loaded, or no deadline would hold, and nobody would know."""
    monkeypatch.setattr(broken, "_run", lambda _: None)
    models, stop = LineModels(lambda _: (StandIn(), "0123"), Turns()), threading.Event()
    timer = threading.Timer(20, stop.set)
    timer.start()
    try:
        with pytest.raises(ProconError, match="has ended; start the line again"):
            ProductionLine([], Deadlines(), models=models).run(stop)
    finally:
        timer.cancel()


def test_models_reload_without_a_stop_and_a_damaged_file_keeps_the_earlier_one(tmp_path: Path) -> None:
    said, path, loads = list[str](), tmp_path / "a.procon", list[str]()

    def load(file: Path) -> tuple[StandIn, str]:
        text = file.read_text()
        if text == "damaged":
            raise ProconError(f"{file.name}: is damaged")
        loads.append(text)
        return StandIn(), text

    models = LineModels(load, Turns(), say=said.append)
    slot = models.slot(path)
    assert models.slot(path) is slot
    models.scan()
    assert slot.current is None and "no such model file" in str(slot.error)
    path.write_text("one")
    models.scan()
    first = slot.current
    assert first is not None and first.revision == "one" and slot.error is None
    models.scan()
    assert loads == ["one"]
    path.write_text("damaged")
    models.scan()
    assert slot.current is first and slot.error == "a.procon: is damaged"
    path.write_text("three")
    models.scan()
    assert slot.current is not None and slot.current.revision == "three"
    path.unlink()
    models.scan()
    assert slot.current is not None  # an export replaces its folder in two steps
    models.scan()
    assert slot.current is None
    assert [text.split(": ")[-1] for text in said if "cannot be loaded" in text] == [
        "is damaged; the earlier one stays in use"
    ]


# ------------------------------------------------------------------------------------------------------------ restarts


def test_the_first_message_after_a_restart_says_so(tmp_path: Path, parts: Path) -> None:
    kinds = []
    for ending in ("stopped", "killed", "stopped"):
        rig = Rig(tmp_path)
        station, _, receiver = rig.add(named(parts), StandIn())
        rig.start()
        first = result_of(station, "1")
        eventually(lambda receiver=receiver: len(receiver.got) == 2)  # type: ignore[misc]
        kinds.append((receiver.got[0]["kind"], receiver.got[0]["restarted"], receiver.got[0]["after"]))
        assert first.get("restarted", False) is (len(kinds) > 1)
        assert "restarted" not in result_of(station, "2")
        rig.end() if ending == "stopped" else kill(rig)
    assert kinds == [("started", False, "first"), ("started", True, "stopped"), ("started", True, "killed")]


def kill(rig: Rig) -> None:
    """What a kill -9 leaves of the outbox: the run has no end."""
    for station in rig.stations:
        station.plan.outbox.end_run = lambda: None  # type: ignore[method-assign]
    rig.end()


def test_a_held_event_of_a_process_that_was_killed_is_delivered(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.sqlite")
    outbox.add({"id": "1"}, ["sink"], hold=True)
    assert outbox.next_event("sink") is None
    outbox.add({"id": "1", "verdict": "none"}, ["sink"], hold=True)
    outbox.close()
    again = Outbox(tmp_path / "o.sqlite")
    event = again.next_event("sink")
    assert event is not None and event.body == {"id": "1", "verdict": "none"}
    again.close()
