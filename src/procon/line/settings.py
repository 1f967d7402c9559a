"""The settings of a line, and the one schema behind reading them, their errors, the example and the page of the docs.

A field of a dataclass below is a key of the file: its type says what is expected, its metadata what it means.
"""

# ruff: noqa: RUF009 - key() makes a field, as field() does
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from procon.errors import ConfigError, ProconError
from procon.hosts import is_loopback
from procon.names import show_name

DAY = 86_400.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_WORDS: dict[Any, str] = {
    str: "text in quotes",
    Path: "a path in quotes",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    tuple[Path, ...]: "a path in quotes, or a list of them",
}


def key(doc: str, default: Any = MISSING, *, least: float = 0.0, most: float = DAY, example: Any = None) -> Any:
    """A key of the file: what it means, what it may be, and what the example file writes."""
    return field(default=default, metadata={"doc": doc, "least": least, "most": most, "example": example})


@dataclass(frozen=True, kw_only=True)
class StationSettings:
    """``[[station]]``: one for each place where parts are inspected."""

    name: str = key("Name of the station in every result, unlike that of any other.", example="top")
    source: str = key(
        'Folder, camera ("rtsp://...", "/dev/video0"), or "push" for images that come by HTTP.', example="incoming/top"
    )
    model: tuple[Path, ...] = key(
        "Model file or exported folder; a list of them makes jobs 1, 2, ...", example="bracket.procon"
    )
    trigger: bool = key("Inspect when told to (Modbus, OPC UA, HTTP), not when an image arrives.", False)
    image: str = key("With trigger and a folder: the file to inspect, {part} being the part.", "{part}.png")
    deadline_ms: float = key("From trigger or arrival to the result; later means no verdict. 0: none.", 0.0, most=3.6e6)
    every: float = key("Seconds between looks at a folder or between frames.", 1.0, least=0.001)
    settle: float = key("Seconds that a file must stay unchanged to be complete.", 1.0)
    existing: bool = key("Also score the images that are there at the very first start.", False)
    csv: Path | None = key("Append a line per result to this file.", None, example="top.csv")
    webhook: str | None = key("Post results as JSON to this address.", None, example="http://mes.local/parts")
    mqtt: str | None = key(
        "Publish results: mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC.", None, example="mqtt://broker/top"
    )
    modbus_block: int = key(
        "Registers of this station: 100 times this number. -1: its place in the file.", -1, least=-1, most=600
    )


@dataclass(frozen=True, kw_only=True)
class OpcUaSettings:
    """``[opcua]``: an OPC UA server; needs ``pip install 'procon[opcua]'``."""

    address: str = key("HOST:PORT to listen at.", "127.0.0.1:4840")
    security: str = key('"none", or "sign-and-encrypt"; "auto" is none on this machine only.', "auto")
    certificates: Path = key(
        "Folder of the own certificate, its key, and trusted/ with those of clients.", Path("opcua")
    )


@dataclass(frozen=True, kw_only=True)
class ModbusSettings:
    """``[modbus]``: a Modbus/TCP server; needs ``pip install 'procon[modbus]'``."""

    address: str = key("HOST:PORT to listen at. Modbus knows no passwords: use a network of its own.", "127.0.0.1:5020")
    acknowledge_seconds: float = key("A result that nobody acknowledges is withdrawn after so long.", 10.0, least=0.01)


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """``[http]``: images and triggers by HTTP, states, pause and resume."""

    address: str = key("HOST:PORT to listen at.", "127.0.0.1:8600")
    token_file: Path | None = key("File with the token that clients must send; needed beyond this machine.", None)
    image_bytes: int = key("Largest image.", 50_000_000, least=1000, most=2**31)


@dataclass(frozen=True, kw_only=True)
class LineSettings:
    """``[line]``: what all stations share."""

    outbox: Path = key("Folder that keeps results until every receiver has them.", Path("outbox"))
    weights: Path | None = key("Weights of the backbone, if they are no longer where the model was fitted.", None)
    device: str = key("auto, cpu or cuda; gpu with OpenVINO folders.", "auto")
    threads: int = key("Cores for exported models; 0: all.", 0, most=1024)
    stations: tuple[StationSettings, ...] = field(default=(), metadata={"tables": "station"})
    opcua: OpcUaSettings | None = field(default=None, metadata={"table": "opcua"})
    modbus: ModbusSettings | None = field(default=None, metadata={"table": "modbus"})
    http: HttpSettings | None = field(default=None, metadata={"table": "http"})


_ON = ("line", "station", "http")  # tables that the example file does not comment out
SETTING_TABLES: dict[str, type] = {
    "line": LineSettings,
    "station": StationSettings,
    "modbus": ModbusSettings,
    "opcua": OpcUaSettings,
    "http": HttpSettings,
}


def keys_of(table: type) -> list[Field[Any]]:
    """The keys of a table of the file, in order."""
    return [item for item in fields(table) if "doc" in item.metadata]


def expected(table: type, item: Field[Any]) -> str:
    """What the value of a key must be, in words."""
    kind = _plain_type(get_type_hints(table)[item.name])
    words = _WORDS[kind]
    if kind in (float, int):
        words += f" from {item.metadata['least']:g} to {item.metadata['most']:g}"
    return words


def read_settings(path: Path) -> LineSettings:
    """The settings of a file; a ConfigError names every problem with its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{show_name(path)}: is not UTF-8 text; save it as UTF-8") from None
    except FileNotFoundError:
        raise ConfigError(f"{show_name(path)}: no such file; write an example with: procon line --init") from None
    settings, problems = parse_line(text, path)
    if settings is None or problems:
        raise ConfigError("\n".join(problems))
    return settings


def parse_line(text: str, path: Path) -> tuple[LineSettings | None, list[str]]:
    """The settings, and every problem as "FILE: line N: what was expected, what came, what to do"."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and brackets without end
        return None, [f"{show_name(path)}: is no TOML: {error}; check quotes, numbers and brackets there"]
    reader = _Reader(text, path)
    stations = document.pop("station", None)
    if not isinstance(stations, list) or not all(isinstance(station, dict) for station in stations) or not stations:
        reader.report("station", None, "expected at least one [[station]], got none; write [[station]] and its keys")
        stations = []
    parts: dict[str, Any] = {}
    parts["stations"] = tuple(reader.read("station", entries, number) for number, entries in enumerate(stations))
    for name, value in document.items():
        if name not in SETTING_TABLES or not isinstance(value, dict):
            known = ", ".join(f"[{table}]" for table in SETTING_TABLES)
            reader.report(name, None, f"expected the tables {known}, got {name}; check the name")
        elif name != "line":
            parts[name] = reader.read(name, value)
    line = document.get("line", {})
    made = reader.read("line", line if isinstance(line, dict) else {}, extra=parts)
    reader.check_names(parts["stations"])
    return made, reader.problems


class _Reader:
    """Values of tables, and the problems with them."""

    def __init__(self, text: str, path: Path) -> None:
        self._lines, self._path = text.splitlines(), path
        self.problems: list[str] = []

    def read(self, table: str, entries: Mapping[str, Any], number: int = 0, extra: Mapping[str, Any] = {}) -> Any:
        """A table as its dataclass; None if something is wrong with it."""
        made, before = SETTING_TABLES[table], len(self.problems)
        known = {item.name: item for item in keys_of(made)}
        for name in entries.keys() - known.keys():
            near = ", ".join(sorted(known))
            self.report(table, name, f"{name} is no key of this table; expected one of {near}; check the name", number)
        values = dict(extra)
        for name, item in known.items():
            if name in entries:
                value = self._value(made, item, entries[name])
                if value is None:
                    words, got = expected(made, item), _show_value(entries[name])
                    self.report(table, name, f"{name} must be {words}, got {got}; {item.metadata['doc']}", number)
                values[name] = value
            elif item.default is MISSING:
                example = _show_value(item.metadata["example"])
                self.report(table, None, f"{name} is missing; add for example {name} = {example}", number)
            elif isinstance(item.default, Path):
                values[name] = self._path.parent / item.default
        return made(**values) if len(self.problems) == before else None

    def _value(self, table: type, item: Field[Any], value: Any) -> Any:
        """The value as its type; None if it does not fit."""
        kind = _plain_type(get_type_hints(table)[item.name])
        least, most = item.metadata["least"], item.metadata["most"]
        if kind is bool:
            return value if isinstance(value, bool) else None
        if kind in (int, float):
            fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            return kind(value) if fits and least <= value <= most else None
        if kind is str:
            return value if isinstance(value, str) and value else None
        if kind is Path:
            return self._path.parent / value if isinstance(value, str) and value else None
        listed = value if isinstance(value, list) else [value]
        good = bool(listed) and all(isinstance(entry, str) and entry for entry in listed)
        return tuple(self._path.parent / entry for entry in listed) if good else None

    def check_names(self, stations: tuple[StationSettings | None, ...]) -> None:
        """Names and files that must differ from station to station."""
        seen: dict[tuple[str, Any], int] = {}
        for number, station in enumerate(stations):
            if station is None:
                continue
            if not NAME.fullmatch(station.name):
                words = f"name must be 1 to 32 letters, digits, - and _, got {station.name!r}; choose another"
                self.report("station", "name", words, number)
            for name, value in (("name", station.name.lower()), ("csv", station.csv)):
                other = seen.setdefault((name, value), number) if value is not None else number
                if other != number:
                    words = f"{name} must differ from that of station {other + 1}, got {value}; choose another"
                    self.report("station", name, words, number)

    def report(self, table: str, name: str | None, problem: str, number: int | None = None) -> None:
        """Add a problem, with the line of the key, or of its table."""
        line = self._find_line(table, name, number or 0)
        where = f"line {line}: " if line else ""
        title = f"[[station]] {number + 1}: " if table == "station" and number is not None else ""
        self.problems.append(f"{show_name(self._path)}: {where}{title}{problem}")

    def _find_line(self, table: str, name: str | None, number: int) -> int | None:
        """The line of a key, else of the head of its table; None where neither is found."""
        current, count, head = "", -1, None
        for line, text in enumerate(self._lines, 1):
            match = re.match(r"\s*\[\[?\s*([A-Za-z0-9_-]+)\s*\]", text)
            if match:
                current = match[1]
                count += current == table
            here = current == table and (table != "station" or count == number)
            if here and match:
                head = line
            if here and name is not None and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", text):
                return line
        return head


def _plain_type(kind: Any) -> Any:
    """The type of a value that may also be absent."""
    options = [option for option in getattr(kind, "__args__", ()) if option is not type(None)]
    return options[0] if type(None) in getattr(kind, "__args__", ()) else kind


def _show_value(value: Any) -> str:
    """A value as TOML writes it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_show_value, value)) + "]"
    text = f'"{value}"' if isinstance(value, str | Path) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def block_of(settings: LineSettings, number: int) -> int:
    """The block of registers of the station at this place in the file."""
    block = settings.stations[number].modbus_block
    return number if block < 0 else block


def split_address(table: str, address: str) -> tuple[str, int]:
    """Host and port to listen at."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProconError(f"[{table}] address must be HOST:PORT, got {address!r}; write for example 127.0.0.1:4840")
    return host, int(port)


def listens_locally(address: str) -> bool:
    """Whether only this machine can reach what listens there."""
    return is_loopback(address.rpartition(":")[0].removeprefix("[").removesuffix("]"))


def example_text() -> str:
    """A commented file with every key: those that need a value are set, the others say their default."""
    lines = ["# A line: procon line line.toml; what is wrong with this file: procon line line.toml --check"]
    lines.append("# Paths are relative to the folder of this file.")
    for name, made in SETTING_TABLES.items():
        head = "[[station]]" if name == "station" else f"[{name}]"
        lines += ["", f"# {(made.__doc__ or '').replace('`', '')}", head if name in _ON else f"# {head}"]
        for item in keys_of(made):
            value = item.metadata["example"] if item.default in (MISSING, None) else item.default
            shown = _show_value("FILE" if value is None else value)
            lines += [f"# {item.metadata['doc']}", f"{'' if item.default is MISSING else '# '}{item.name} = {shown}"]
    return "\n".join(lines) + "\n"
