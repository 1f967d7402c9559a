"""From settings to a line that can be started: ``procon line`` with its stations, and ``procon watch`` with one."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from procon.files import is_folder
from procon.line.arrivals import Camera, Folder, NamedImages, Pushed, Source, is_camera
from procon.line.delivery import FIRST_DELAY, LONGEST_DELAY, Deliveries
from procon.line.engine import LineServer, ProductionLine
from procon.line.handshake import Handshake
from procon.line.http import HttpServer, read_token
from procon.line.models import LineModels, LoadModel, Turns, model_loader
from procon.line.outbox import Outbox
from procon.line.parts import Deadlines
from procon.line.reporting import StationPlan
from procon.line.settings import LineSettings, StationSettings, block_of, listens_locally, split_address
from procon.line.sinks import CSV_COLUMNS, LINE_COLUMNS, CsvSink, MqttSink, Sink, WebhookSink
from procon.line.station import Station
from procon.progress import Say, say_nothing

PUSH = "push"
DEFAULT_DEADLINE = 10.0  # seconds, of a triggered station without one: a trigger always gets an answer


def open_source(settings: StationSettings, folder: Path) -> Source:
    """The source of a station; ``folder`` is what its path is relative to."""
    if settings.source == PUSH:
        return Pushed()
    if is_camera(settings.source):
        return Camera(settings.source)
    if settings.trigger:
        return NamedImages(folder / settings.source, settings.image, settings.settle)
    return Folder(folder / settings.source, settings.settle)


def make_sinks(settings: StationSettings, *, one_station: bool = False) -> list[Sink]:
    """Where the results of a station go, besides protocols."""
    dashes, columns = ("--", CSV_COLUMNS) if one_station else ("", LINE_COLUMNS)
    sinks: list[Sink] = [] if settings.csv is None else [CsvSink(settings.csv, columns, label=f"{dashes}csv")]
    sinks += [] if settings.webhook is None else [WebhookSink(settings.webhook, label=f"{dashes}webhook")]
    sinks += [] if settings.mqtt is None else [MqttSink(settings.mqtt, label=f"{dashes}mqtt")]
    return sinks


def is_triggered(settings: StationSettings) -> bool:
    """Whether a station waits for triggers; images that are pushed are their own."""
    return settings.trigger or settings.source == PUSH


def deadline_of(settings: StationSettings) -> float | None:
    """Seconds until a part must have its result."""
    if settings.deadline_ms:
        return settings.deadline_ms / 1000
    return DEFAULT_DEADLINE if is_triggered(settings) else None


def make_plan(
    settings: StationSettings,
    folder: Path,
    models: LineModels,
    outbox: Outbox,
    sinks: Sequence[Sink],
    *,
    first: float = FIRST_DELAY,
    longest: float = LONGEST_DELAY,
    say: Say = say_nothing,
) -> StationPlan:
    """What a station does with an outbox and sinks that are open already."""
    watched = not is_triggered(settings) and not is_camera(settings.source)
    if watched and outbox.is_new and not settings.existing and is_folder(folder / settings.source):
        outbox.remember(Folder(folder / settings.source, settings.settle).files())
    return StationPlan(
        settings.name,
        partial(open_source, settings, folder),
        [models.slot(path) for path in settings.model],
        outbox,
        [sink.name for sink in sinks],
        Deliveries(outbox, sinks, first=first, longest=longest, say=say),
        triggered=is_triggered(settings),
        deadline=deadline_of(settings),
        every=settings.every,
        say=say,
    )


def make_line(
    settings: LineSettings,
    folder: Path,
    *,
    load: LoadModel | None = None,
    say: Say = say_nothing,
) -> ProductionLine:
    """All stations of a line and the protocols it speaks; ``load`` is another way to load models, for tests."""
    loads = load or model_loader(weights=settings.weights, device=settings.device, threads=settings.threads or None)
    models, deadlines, stations = LineModels(loads, Turns(), say=say), Deadlines(), list[Station]()
    for station in settings.stations:
        outbox = Outbox(settings.outbox / f"{station.name}.sqlite")
        stations.append(Station(make_plan(station, folder, models, outbox, make_sinks(station), say=say), deadlines))
    return ProductionLine(stations, deadlines, models=models, servers=make_servers(settings, stations, say), say=say)


def make_servers(settings: LineSettings, stations: Sequence[Station], say: Say) -> list[LineServer]:
    """The protocols that the file asks for; one without its extra fails here, before anything starts."""
    servers: list[LineServer] = []
    if settings.modbus is not None:
        from procon.line.modbus import ModbusServer

        seconds = settings.modbus.acknowledge_seconds
        handshakes = {
            block_of(settings, number): Handshake(station, seconds) for number, station in enumerate(stations)
        }
        for handshake, station in zip(handshakes.values(), stations, strict=True):
            station.plan.listeners.append(handshake)
        servers.append(ModbusServer(*split_address("modbus", settings.modbus.address), handshakes))
    if settings.opcua is not None:
        from procon.line.certificates import Certificates
        from procon.line.opcua import OpcUaServer

        security, listen = settings.opcua.security, settings.opcua.address
        secure = not listens_locally(listen) if security == "auto" else security == "sign-and-encrypt"
        certificates = Certificates(settings.opcua.certificates) if secure else None
        server = OpcUaServer(*split_address("opcua", listen), stations, certificates)
        for station, station_object in zip(stations, server.objects, strict=True):
            station.plan.listeners.append(station_object)
        servers.append(server)
        if not secure and not listens_locally(listen):
            say(f"[opcua] anyone who reaches {listen} can read results and trigger parts: security is none")
    if settings.http is not None:
        token = None if settings.http.token_file is None else read_token(settings.http.token_file)
        host, port = split_address("http", settings.http.address)
        servers.append(HttpServer(host, port, stations, token, settings.http.image_bytes))
    return servers
