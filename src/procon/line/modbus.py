"""The Modbus/TCP server: one device whose holding registers are those of all stations."""

from collections.abc import Mapping
from typing import Any

from procon.errors import MissingExtraError, ProconError
from procon.line.handshake import Handshake
from procon.line.loops import LoopServer
from procon.line.registers import BLOCK, LENGTH, STATUS


class ModbusServer(LoopServer):
    """Registers at 100 times the block of a station; other addresses, and writing what the line writes, are refused."""

    name = "modbus"

    def __init__(self, host: str, port: int, handshakes: Mapping[int, Handshake]) -> None:
        super().__init__()
        try:
            from pymodbus import server, simulator
        except ImportError:
            raise MissingExtraError("[modbus] needs pymodbus; install it with: pip install 'procon[modbus]'") from None
        self._servers, self._simulator = server, simulator
        self._address, self._handshakes = (host, port), handshakes
        self._server: Any = None

    async def open(self) -> None:
        """Listen."""
        data, kind = [], self._simulator.DataType.REGISTERS
        for block in sorted(self._handshakes):
            first = BLOCK * block
            data.append(self._simulator.SimData(first, values=[0] * STATUS, datatype=kind))
            words = [0] * (LENGTH - STATUS)
            data.append(self._simulator.SimData(first + STATUS, values=words, datatype=kind, readonly=True))
        device = self._simulator.SimDevice(id=0, simdata=data, action=self._act)
        self._server = self._servers.ModbusTcpServer(device, address=self._address)
        try:
            await self._server.serve_forever(background=True)
        except RuntimeError as error:
            raise ProconError(f"{self._address[0]}:{self._address[1]}: {error}") from None

    async def tick(self) -> None:
        """The heartbeat."""
        for handshake in self._handshakes.values():
            handshake.tick()

    async def close(self) -> None:
        """Close connections."""
        if self._server is not None:
            await self._server.shutdown()

    async def _act(
        self,
        _function: int,
        start: int,
        address: int,
        count: int,
        registers: list[int],
        values: list[int] | list[bool] | None,
    ) -> Any:
        """Before registers are read they are filled in; what is written is handed on."""
        blocks = range(address // BLOCK, (address + count - 1) // BLOCK + 1)
        if values is not None:
            self._handshakes[blocks[0]].write(address % BLOCK, [int(value) for value in values])
            return None
        for block in blocks:
            first = block * BLOCK + STATUS - start
            registers[first : first + LENGTH - STATUS] = self._handshakes[block].status()
        return None
