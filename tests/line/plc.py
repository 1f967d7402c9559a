"""What a PLC does, with a real Modbus client:

python plc.py PORT parts FIRST END [BLOCK]     inspect parts one after the other; a JSON line for each result
python plc.py PORT die PART                    trigger a part, and end in the middle of it
python plc.py PORT hurry PART                  trigger a part, and the next one while it is in work
"""

import json
import os
import sys
import time

from pymodbus.client import ModbusTcpClient

from procon.line.registers import BLOCK, LENGTH, REGISTERS, STATUS, decode_register

SECONDS = 60.0


def main() -> None:
    port, action, *rest = sys.argv[1:]
    client = ModbusTcpClient("127.0.0.1", port=int(port), timeout=10)
    deadline = time.monotonic() + SECONDS
    while not client.connect():
        assert time.monotonic() < deadline, "nothing listens"
        time.sleep(0.05)
    if action == "die":
        wait(client, 0, "ready")
        order(client, 0, int(rest[0]))
        os._exit(0)
    if action == "hurry":
        hurry(client, int(rest[0]))
        return
    first = BLOCK * int(rest[2]) if len(rest) > 2 else 0
    for number in range(int(rest[0]), int(rest[1])):
        client.write_register(first, 0)
        before = wait(client, first, "ready")
        order(client, first, number)
        seen = wait(client, first, "done")
        print(json.dumps({**seen, "restarted_before": before["restarted"]}), flush=True)
        client.write_register(first, 0)
    client.close()


def hurry(client: ModbusTcpClient, part: int) -> None:
    wait(client, 0, "ready")
    order(client, 0, part)
    wait(client, 0, "busy")
    client.write_register(0, 0)
    order(client, 0, part + 1)
    print(json.dumps(wait(client, 0, "done")), flush=True)
    client.write_register(0, 0)
    client.close()


def order(client: ModbusTcpClient, first: int, part: int) -> None:
    assert not client.write_registers(first, [1, 0, part >> 16, part & 0xFFFF]).isError()


def wait(client: ModbusTcpClient, first: int, name: str) -> dict[str, int]:
    """All registers of a station, once one of them is 1."""
    deadline = time.monotonic() + SECONDS
    while True:
        read = client.read_holding_registers(first + STATUS, count=LENGTH - STATUS)
        assert not read.isError(), read
        words = read.registers
        values = {item.name: decode_register(words, item.name, STATUS) for item in REGISTERS if item.writer == "line"}
        assert values["pass"] + values["fail"] + values["no_verdict"] == values["done"], values
        if values[name]:
            return values
        assert time.monotonic() < deadline, f"{name} did not come"
        time.sleep(0.001)


if __name__ == "__main__":
    main()
