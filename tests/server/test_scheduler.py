"""The queue and the thread behind it, without HTTP."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procon.hosts import is_loopback
from procon.server.engine import group_sizes
from procon.server.request_errors import Redactor, RequestError
from procon.server.scheduler import DeviceWorker, Queue, Work
from procon.server.uploads import clean_name


class Held:
    """A worker whose device is busy until it is let go, and what it was then given, group by group."""

    def __init__(self, batch: int, queue: Queue) -> None:
        self.worker = DeviceWorker(batch, 0.001, queue, print)
        self.groups: list[list[Any]] = []
        self._go = threading.Event()
        self.worker.start()
        busy = threading.Event()

        def hold(_: Sequence[Any]) -> list[bool]:
            busy.set()
            return [self._go.wait(10)]

        self.worker.submit(Work(object(), None, hold))
        assert busy.wait(10)

    def submit(self, key: object, item: Any) -> "Future[Any]":
        def run(items: Sequence[Any]) -> list[Any]:
            self.groups.append(list(items))
            if "bad" in items:
                raise ValueError("bad")
            return [f"{key} {item}" for item in items]

        return self.worker.submit(Work(key, item, run))

    def release(self) -> None:
        self._go.set()
        self.worker.stop()


def test_on_a_cpu_images_pass_one_by_one_in_order() -> None:
    held = Held(1, Queue(10, 100, 1.0))
    futures = [held.submit("m", number) for number in range(4)]
    held.release()
    assert held.groups == [[0], [1], [2], [3]]
    assert [future.result() for future in futures] == ["m 0", "m 1", "m 2", "m 3"]


def test_on_a_gpu_those_of_one_model_pass_together() -> None:
    held = Held(3, Queue(10, 100, 1.0))
    futures = [held.submit(model, number) for number, model in enumerate("aabaaa")]
    held.release()
    assert held.groups == [[0, 1, 3], [2], [4, 5]]
    assert [future.result() for future in futures] == ["a 0", "a 1", "b 2", "a 3", "a 4", "a 5"]


def test_a_failure_reaches_those_it_belongs_to_and_the_thread_goes_on() -> None:
    held = Held(1, Queue(10, 100, 1.0))
    futures = [held.submit("m", item) for item in ("bad", "fine")]
    held.release()
    with pytest.raises(ValueError, match="bad"):
        futures[0].result()
    assert futures[1].result() == "m fine"


def test_cancelled_work_is_never_done() -> None:
    held = Held(4, Queue(10, 100, 1.0))
    futures = [held.submit("m", number) for number in range(3)]
    assert futures[1].cancel()
    held.release()
    assert held.groups == [[0, 2]]


def test_a_stopped_worker_finishes_what_waits_and_takes_no_more() -> None:
    held = Held(1, Queue(10, 100, 1.0))
    future = held.submit("m", 1)
    held.release()
    assert future.result() == "m 1" and not held.worker.alive
    with pytest.raises(RequestError, match="the server is stopping"):
        held.submit("m", 2)


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 8))
def test_the_queue_never_holds_more_than_its_limits(sizes: list[int], limit: int) -> None:
    queue, taken, places = Queue(limit, 100, 1.0), 0, ExitStack()
    count = 0
    for size in sizes:
        try:
            places.enter_context(queue.place(size))
        except RequestError as error:
            assert error.status_code == 503 and error.headers is not None and int(error.headers["retry-after"]) >= 1
            assert count == limit or taken + size > 100
            continue
        count, taken = count + 1, taken + size
        assert queue.images == count <= limit and taken <= max(100, size)
    places.close()
    assert queue.images == 0
    with queue.place(1000):  # alone
        pass


def test_a_rush_shortens_the_line_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue = Queue(8, 10**9, most_seconds=1.0, least=2)
    with ExitStack() as others:
        for _ in range(8):
            others.enter_context(queue.place(1))
        queue.record_time(0.3)
        assert queue.places == 8  # eight clients that ask in turn are all served
        with pytest.raises(RequestError) as refused:
            queue.check()
        assert refused.value.headers == {"retry-after": "2"}  # eight images of 0.3 s
        assert queue.places == 3  # what can be answered within a second
    for count in (1, 2, 3):
        with ExitStack() as few:
            for _ in range(count):
                few.enter_context(queue.place(1))
            if count < 3:
                continue
            with pytest.raises(RequestError):
                queue.check()
    now[0] += 4
    with pytest.raises(RequestError), ExitStack() as few:
        for _ in range(4):
            few.enter_context(queue.place(1))
    now[0] += 4  # the rush goes on from the latest refusal
    assert queue.places == 3
    now[0] += 2
    assert queue.places == 8
    queue.record_time(10.0)
    with pytest.raises(RequestError), ExitStack() as many:
        for _ in range(9):
            many.enter_context(queue.place(1))
    assert queue.places == 2  # never fewer than can be worked on at a time


def test_when_a_rush_begins_those_who_came_last_are_refused_too() -> None:
    queue = Queue(6, 10**9, most_seconds=1.0, least=2)
    held = Held(1, queue)
    with ExitStack() as others:
        for _ in range(6):
            others.enter_context(queue.place(1))
        futures = [held.submit("m", number) for number in range(6)]
        preparing = held.worker.submit(Work("n", 6, list, timed=False))
        queue.record_time(0.5)
        with pytest.raises(RequestError):
            queue.check()
    assert queue.refused == 5
    for late in futures[2:]:
        with pytest.raises(RequestError) as refused:
            late.result(1)
        assert refused.value.status_code == 503 and refused.value.headers == {"retry-after": "1"}
    held.release()
    assert [future.result() for future in futures[:2]] == ["m 0", "m 1"]
    assert preparing.result() == 6  # a model that is being loaded waits its turn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/models/a.procon: is truncated", "a.procon: is truncated"),
        ("found (/etc/x.png) and 'C:\\data\\y.png'", "found (x.png) and 'y.png'"),
        ("no path: 3/4 of it, and/or more", "no path: 3/4 of it, and/or more"),
        ("/a folder/with blanks/b.png: gone", "b.png: gone"),
    ],
)
def test_messages_lose_their_folders(text: str, expected: str) -> None:
    from pathlib import Path

    assert Redactor([Path("/a folder/with blanks")])(text) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "LOCALHOST", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "factory", "localhost.evil.example", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@given(st.text(max_size=200))
def test_a_cleaned_name_is_one_harmless_name(name: str) -> None:
    cleaned = clean_name(name)
    assert 1 <= len(cleaned) <= 80
    assert not set(cleaned) & set("/\\\0\n\r\"'<>:|?*")


def test_a_gpu_is_prepared_for_small_groups_and_the_largest() -> None:
    assert group_sizes(64) == [64, 16, 8, 4, 2, 1]
    assert group_sizes(8) == [8, 4, 2, 1]
    assert group_sizes(3) == [3, 2, 1]
