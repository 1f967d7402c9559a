"""What is wrong with the settings of a line beyond their spelling: said before anything starts."""

import re
import socket
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from procon.deploy.manifest import is_exported, read_manifest
from procon.errors import ProconError
from procon.files import describe_os_error, is_file, is_folder
from procon.line.arrivals import is_camera
from procon.line.build import DEFAULT_DEADLINE, PUSH, make_sinks
from procon.line.http import read_token
from procon.line.settings import LineSettings, StationSettings, block_of, listens_locally, split_address
from procon.model.document import calibration_of
from procon.model.metadata import read_metadata
from procon.names import show_name

SECURITY = ("auto", "none", "sign-and-encrypt")


def check_line(settings: LineSettings, path: Path, *, places: bool = True) -> list[str]:
    """Every problem as a sentence with its remedy; nothing is opened or written.

    Without ``places``, folders and models may be missing: a station waits for them and leaves the others alone.
    """
    problems = list[str]()
    for station in settings.stations:
        name = f"{show_name(path)}: station {station.name}"
        found = _check_places(station, path.parent) if places else []
        problems += [f"{name}: {problem}" for problem in [*found, *_check_station(station, settings)]]
    found = [*_check_line(settings), *_check_servers(settings)]
    found += _check_machine(settings) if places else []
    return problems + [f"{show_name(path)}: {problem}" for problem in found]


def _check_places(station: StationSettings, folder: Path) -> list[str]:
    problems = list[str]()
    for model in station.model:
        try:
            problems += _check_model(model)
        except ProconError as error:
            problems.append(str(error))
    by_path = station.source != PUSH and not is_camera(station.source)
    if by_path and not is_folder(folder / station.source):
        problems.append(f"source must be a folder, a camera or {PUSH}, got {station.source}; make the folder first")
    if station.source.startswith("/dev/") and not Path(station.source).exists():
        problems.append(f"there is no camera {station.source}; connect it, or name another")
    return problems


def _check_station(station: StationSettings, settings: LineSettings) -> list[str]:
    problems = list[str]()
    if is_camera(station.source) and find_spec("cv2") is None:
        problems.append("a camera needs OpenCV; install it with: pip install 'procon[camera]'")
    if station.source == PUSH and settings.http is None:
        problems.append(f"images are pushed by HTTP, and there is no [http]; add it, or another source than {PUSH}")
    if station.trigger and not (settings.http or settings.modbus or settings.opcua):
        problems.append("trigger = true, and nothing can trigger it; add [modbus], [opcua] or [http]")
    deadline = station.deadline_ms / 1000 or DEFAULT_DEADLINE
    by_name = station.trigger and station.source != PUSH and not is_camera(station.source)
    if by_name and station.settle >= deadline:
        words = f"settle must be shorter than the deadline of {deadline:g} s, got {station.settle:g}"
        problems.append(f"{words}: no part would get a verdict; lower it, or raise deadline_ms")
    if by_name and {"..", "", "."} & set(station.image.replace("\\", "/").split("/")):
        problems.append(f"image must name a file in {station.source}, got {station.image}; leave out '..' and '/'")
    names = Counter(model.name.removesuffix(".procon") for model in station.model)
    if repeated := [name for name, count in names.items() if count > 1]:
        problems.append(f"the models of a station need different names, got {repeated[0]} twice; rename one")
    try:
        sinks = make_sinks(station)
    except ProconError as error:
        return [*problems, str(error)]
    if not (sinks or settings.http or settings.modbus or settings.opcua):
        problems.append("results must go somewhere; add csv, webhook or mqtt, or a table [modbus], [opcua] or [http]")
    return problems


def _check_model(path: Path) -> list[str]:
    if is_folder(path):
        if not is_exported(path):
            return [f"{show_name(path)}: is no exported model; make one with procon export, or name a .procon file"]
        calibrated = read_manifest(path).calibration is not None
    else:
        calibrated = calibration_of(read_metadata(path)) is not None
    remedy = f"calibrate it with: procon threshold {path.name} --calibrate GOOD"
    return [] if calibrated else [f"{show_name(path)}: has no threshold, so no part would get a verdict; {remedy}"]


def _check_line(settings: LineSettings) -> list[str]:
    only_files = not any(is_folder(model) for station in settings.stations for model in station.model)
    if only_files and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", settings.device):
        return [f"[line] device must be auto, cpu or cuda for model files, got {settings.device!r}; choose one"]
    return []


def _check_machine(settings: LineSettings) -> list[str]:
    """Files and addresses that the line itself needs."""
    problems = list[str]()
    if settings.weights is not None and not settings.weights.exists():
        problems.append(f"[line] weights: there is no {show_name(settings.weights)}; check the path, or leave it out")
    folders = {"[line] outbox": settings.outbox}
    if settings.opcua is not None:
        folders["[opcua] certificates"] = settings.opcua.certificates
    problems += [
        f"{name} must be a folder, got the file {show_name(folder)}; name another"
        for name, folder in folders.items()
        if is_file(folder)
    ]
    if settings.http is not None and settings.http.token_file is not None:
        try:
            read_token(settings.http.token_file)
        except OSError as error:
            problems.append(f"[http] token_file: {describe_os_error(error)}; write a token of 16 characters into it")
        except (ProconError, UnicodeDecodeError) as error:
            problems.append(f"[http] token_file: {error}")
    for table in ("modbus", "opcua", "http"):
        problems += _check_host(table, getattr(settings, table))
    return problems


def _check_host(table: str, entries: Any) -> list[str]:
    """Whether the host of an address is this machine; the port may be that of the line which runs now."""
    try:
        host, _ = split_address(table, entries.address)
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (ProconError, AttributeError):  # said already, or there is no such table
        return []
    except OSError:
        return [f"[{table}] address: {host} is no address of this machine; use one of its own, 127.0.0.1 or 0.0.0.0"]
    return []


def _check_servers(settings: LineSettings) -> list[str]:
    problems, ports = list[str](), dict[int, str]()
    tables: dict[str, Any] = {"modbus": settings.modbus, "opcua": settings.opcua, "http": settings.http}
    for table, entries in tables.items():
        if entries is None:
            continue
        try:
            _, port = split_address(table, entries.address)
        except ProconError as error:
            problems.append(str(error))
            continue
        if port in ports:
            problems.append(f"[{table}] address: port {port} is that of [{ports[port]}], too; choose another")
        ports[port] = table
    blocks = [block_of(settings, number) for number in range(len(settings.stations))]
    if settings.modbus is not None:
        if find_spec("pymodbus") is None:
            problems.append("[modbus] needs pymodbus; install it with: pip install 'procon[modbus]'")
        if len(set(blocks)) < len(blocks):
            problems.append(f"modbus_block must differ from station to station, got {blocks}; give each its own")
    if settings.opcua is not None:
        if find_spec("asyncua") is None:
            problems.append("[opcua] needs asyncua; install it with: pip install 'procon[opcua]'")
        if settings.opcua.security not in SECURITY:
            listed = ", ".join(SECURITY)
            problems.append(f"[opcua] security must be one of {listed}, got {settings.opcua.security!r}; choose one")
    if settings.http is not None and settings.http.token_file is None and not listens_locally(settings.http.address):
        problems.append("[http] is open to other machines without a token; add token_file, or listen at 127.0.0.1")
    return problems
