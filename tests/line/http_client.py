"""What a controller does that speaks HTTP:

python http_client.py PORT parts FIRST END STATION    inspect parts one after the other; a JSON line for each result
python http_client.py PORT die PART STATION           trigger a part, and end before its result comes
python http_client.py PORT hurry PART STATION         trigger a part, and the next one while it is in work
"""

import http.client
import json
import os
import sys
import time
from typing import Any

SECONDS = 60.0


def main() -> None:
    port, action, *rest = sys.argv[1:]
    station = rest[-1]
    while state_of(int(port), station) != "ready":
        time.sleep(0.02)
    first = connect(int(port))
    if action == "parts":
        for part in range(int(rest[0]), int(rest[1])):
            print(json.dumps(inspect(first, station, part)), flush=True)
        return
    part = int(rest[0])
    first.request("POST", f"/{station}/trigger?part={part}")
    while action == "hurry" and state_of(int(port), station) != "busy":
        time.sleep(0.005)
    if action == "die":
        os._exit(0)
    second = connect(int(port))
    second.request("POST", f"/{station}/trigger?part={part + 1}")
    print(json.dumps(read(second)))
    print(json.dumps(read(first)))


def connect(port: int) -> http.client.HTTPConnection:
    """A connection, as soon as somebody listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            connection.connect()
        except OSError:
            assert time.monotonic() < deadline, "nothing listens"
            time.sleep(0.05)
        else:
            return connection


def inspect(connection: http.client.HTTPConnection, station: str, part: int) -> dict[str, Any]:
    """The result of a part; it is triggered again while the station is busy."""
    deadline = time.monotonic() + SECONDS
    while True:
        connection.request("POST", f"/{station}/trigger?part={part}")
        result = read(connection)
        if result.get("cause") != "busy":
            return result
        assert time.monotonic() < deadline, result
        time.sleep(0.002)


def state_of(port: int, station: str) -> str:
    connection = connect(port)
    connection.request("GET", "/")
    return str({entry["station"]: entry["state"] for entry in read(connection)["stations"]}[station])


def read(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """The answer with its status."""
    answer = connection.getresponse()
    return {**json.loads(answer.read()), "status": answer.status}


if __name__ == "__main__":
    main()
