"""The OPC UA server of a line: an object for each station, with the parts of the specification that are in
:mod:`procon.line.vision_system`.
"""

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from procon.errors import MissingExtraError, ProconError
from procon.line import vision_system as vision
from procon.line.certificates import APPLICATION, Certificates
from procon.line.loops import LoopServer
from procon.line.parts import BusyError, EventBody, Inspection, Trigger, check_part
from procon.line.reporting import State
from procon.line.station import Station

_KEPT_RESULTS = 100
DONE, NOT_READY, NOT_POSSIBLE, UNKNOWN = vision.ERRORS


class StationObject:
    """The nodes of one station. It listens to the station in any thread, and works in the loop of the server."""

    def __init__(self, server: "OpcUaServer", station: Station) -> None:
        self.server, self.station = server, station
        self.halted = False
        self._job: Inspection | None = None
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._values: dict[str, Any] = {}
        self._written: dict[str, Any] = {}
        self._events: dict[str, Any] = {}
        self._shown: vision.VisionState | None = None
        self._restarts = 0

    # ------------------------------------------------------------------------------------------- from the station

    def on_busy(self, _station: Station, part: Inspection) -> None:
        """Say that a part is in work."""
        self._job = part
        self.server.post(partial(self._show_start, part))

    def on_result(self, _station: Station, body: EventBody) -> None:
        """Show the result."""
        self._job = None
        self.server.post(partial(self._show_result, body))

    def on_state(self, _station: Station, _state: State, _reason: str) -> None:
        """Show the state."""
        self.server.post(self.show_state)

    # ------------------------------------------------------------------------------------------------- in the loop

    async def build(self, server: Any, index: int, ua: Any) -> None:
        """Add the nodes."""
        root = await server.nodes.objects.add_object(index, self.station.name)
        objects = {"": root}
        for path in (vision.MACHINE, vision.AUTOMATIC, "RecipeManagement", "ResultManagement"):
            parent, _, name = path.rpartition("/")
            objects[path] = await objects[parent].add_object(index, name)
        for path in (vision.MACHINE, vision.AUTOMATIC):
            for name, kind in (("CurrentState", ua.VariantType.String), ("CurrentStateNumber", ua.VariantType.UInt32)):
                node = await objects[path].add_variable(index, name, ua.get_default_value(kind), kind)
                self._values[f"{path}/{name}"] = (node, kind)
        places = (("ResultManagement", vision.RESULT_VARIABLES), ("", vision.STATION_VARIABLES))
        for path, variables in places:
            for variable in variables:
                kind = ua.VariantType[variable.kind]
                node = await objects[path].add_variable(index, variable.name, ua.get_default_value(kind), kind)
                self._values[variable.name] = (node, kind)
        for method in vision.METHODS:
            text, number = ua.VariantType.String, ua.VariantType.Int32
            inputs = [self.server.argument(name, text) for name in method.inputs]
            outputs = [self.server.argument(name, text) for name in method.outputs]
            outputs.append(self.server.argument("Error", number))
            call = partial(self._call, method)
            await objects[method.path].add_method(index, method.name, call, inputs, outputs)
        for event in vision.EVENTS:
            self._events[event.name] = await server.get_event_generator(self.server.make_event(event), root)
        await self._write("Verdict", "none")
        await self.show_state()

    async def show_state(self) -> None:
        """Write the states and say what changed."""
        station = self.station
        busy = self._job is not None
        state = vision.vision_state(station.state, triggered=station.plan.triggered, busy=busy, halted=self.halted)
        await self._write("RecipeId", station.slot.name)
        await self._write("StationRestarts", station.restarts)
        await self._write("Restarted", station.restarted)
        if station.restarts != self._restarts:
            self._restarts = station.restarts
            await self._say("VisionDiagnosticInfoEventType", Reason="the station was restarted")
        before, self._shown = self._shown, state
        if state == before:
            return
        outer = vision.OPERATIONAL if state.automatic else state
        for path, shown in ((vision.MACHINE, outer), (vision.AUTOMATIC, state if state.automatic else None)):
            await self._write(f"{path}/CurrentState", shown.name if shown else "")
            await self._write(f"{path}/CurrentStateNumber", shown.number if shown else 0)
        if before is not None:
            await self._say("StateChangedEventType", FromState=before.name, ToState=state.name)
            if state == vision.ERROR:
                await self._say("ErrorEventType", Reason=station.fault)
            if before == vision.ERROR:
                await self._say("ErrorResolvedEventType", Reason="the cause is gone")

    async def beat(self, count: int) -> None:
        """The heartbeat."""
        await self._write("Heartbeat", count % 2**32)
        await self.show_state()

    async def _show_start(self, part: Inspection) -> None:
        await self._say("JobStartedEventType", JobId=part.event, PartId=part.name)
        await self.show_state()

    async def _show_result(self, body: EventBody) -> None:
        """The event comes first: it is the whole result, and clients wait for it."""
        values = result_values(body)
        self._kept[body["id"]] = values["ResultContent"]
        while len(self._kept) > _KEPT_RESULTS:
            self._kept.popitem(last=False)
        await self._say(vision.RESULT_READY, f"{body['part']}: {body['verdict']}", **values)
        for name, value in values.items():
            await self._write(name, value)
        await self._write("ResultCount", self.station.results)
        if body["verdict"] not in ("good", "anomalous"):
            await self._say("VisionDiagnosticInfoEventType", Reason=f"{body['part']}: {values['Reason']}")
        await self.show_state()

    async def _write(self, name: str, value: Any) -> None:
        """Write a variable, if its value is another than before."""
        if name in self._written and self._written[name] == value:
            return
        self._written[name] = value
        node, kind = self._values[name]
        await self.server.write(node, value, kind)

    async def _say(self, event: str, message: str = "", **fields: Any) -> None:
        generator = self._events[event]
        for name, value in fields.items():
            setattr(generator.event, name, value)
        await generator.trigger(message=message or fields.get("Reason") or event.removesuffix("EventType"))

    # ------------------------------------------------------------------------------------------------- methods

    async def _call(self, method: vision.VisionMethod, _parent: Any, *arguments: Any) -> Any:
        texts = [str(argument.Value or "") for argument in arguments]
        outputs = [""] * len(method.outputs)
        if len(texts) != len(method.inputs):
            return self.server.refuse(
                "BadArgumentsMissing" if len(texts) < len(method.inputs) else "BadTooManyArguments"
            )
        if method.name == "StartSingleJob":
            try:
                check_part(texts[0])
            except ProconError:
                return self.server.refuse("BadInvalidArgument")
        try:
            if method.name == "StartSingleJob":
                outputs, error = [self._start_job(*texts)], DONE
            elif method.name == "GetResultById":
                outputs, error = [self._kept.get(texts[0], "")], DONE if texts[0] in self._kept else UNKNOWN
            elif method.name == "PrepareRecipe":
                self.station.select(self._find_job(texts[0]))
                error = DONE
            else:
                error = await self._control(method)
        except BusyError:
            error = NOT_READY
        except ProconError:
            error = UNKNOWN
        await self.show_state()
        return self.server.answer(outputs, error)

    def _start_job(self, part: str, recipe: str, image: str) -> str:
        if self.halted:
            raise BusyError("the station is halted; call Reset first")
        job = self._find_job(recipe) if recipe else None
        return self.station.trigger(Trigger(part, image or None, job, "OPC UA")).event

    def _find_job(self, recipe: str) -> int:
        for number, slot in enumerate(self.station.plan.slots, 1):
            if recipe in (slot.name, str(number)):
                return number
        raise ProconError(f"there is no recipe {recipe!r}")

    async def _control(self, method: vision.VisionMethod) -> int:
        station, name = self.station, method.name
        if name == "StartContinuous" and station.plan.triggered:
            return NOT_POSSIBLE
        if name in ("StartContinuous", "SelectModeAutomatic") and self.halted:
            return NOT_READY
        restarts = name in ("Halt", "Abort") or (name == "Reset" and method.path == vision.MACHINE)
        if name in ("Halt", "Stop", "Abort") or (name == "Reset" and method.path == vision.AUTOMATIC):
            station.pause()
            self.halted = self.halted or name == "Halt"
        else:
            station.resume()
            self.halted = False
        if restarts:  # waits for nothing, but starts a thread
            await asyncio.to_thread(station.restart, f"{name} was called by OPC UA")
        return DONE


def result_values(body: EventBody) -> dict[str, Any]:
    """The values of the result variables; without a verdict there is no number that could pass for one."""
    has_verdict = body["verdict"] in ("good", "anomalous")
    return {
        "ResultId": body["id"],
        "PartId": body["part"],
        "Verdict": body["verdict"] if has_verdict else "none",
        "Cause": body.get("cause", ""),
        "Reason": body.get("error", ""),
        "Score": float(body["score"]) if has_verdict else math.nan,
        "Threshold": float(body["threshold"]) if has_verdict else math.nan,
        "Regions": json.dumps(body.get("regions", []) if has_verdict else []),
        "InternalRecipeId": body["model"],
        "Source": body["source"],
        "CreationTime": datetime.fromisoformat(body["time"]).astimezone(UTC),
        "ProcessingSeconds": float(body["seconds"]),
        "ResultContent": json.dumps(body),
    }


class OpcUaServer(LoopServer):
    """Serves all stations. Without ``certificates`` connections are open, which is for one machine only."""

    name = "opcua"

    def __init__(self, host: str, port: int, stations: Sequence[Station], certificates: Certificates | None) -> None:
        super().__init__()
        try:
            import asyncua
        except ImportError:
            raise MissingExtraError("[opcua] needs asyncua; install it with: pip install 'procon[opcua]'") from None
        self._asyncua = asyncua
        self._ua: Any = asyncua.ua
        self._url, self._certificates = f"opc.tcp://{host}:{port}/procon", certificates
        self.objects = [StationObject(self, station) for station in stations]
        self.event_types: dict[str, Any] = {}
        self._work: asyncio.Queue[Any] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._server: Any = None
        self._beats = 0

    def post(self, work: Any) -> None:
        """Have ``work`` awaited in the loop, in order; from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._work.put_nowait, work)

    async def open(self) -> None:
        """Build the address space and listen."""
        from procon.line.opcua_events import fields_of

        ua, server = self._ua, self._asyncua.Server()
        self._server = server
        await server.init()
        server.set_endpoint(self._url)
        server.set_server_name("ProCon line")
        await server.set_application_uri(APPLICATION)
        if self._certificates is None:
            server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
        else:
            await self._certificates.apply(server)
        index = await server.register_namespace(vision.NAMESPACE)
        for event in vision.EVENTS:
            self.event_types[event.name] = await server.create_custom_event_type(
                index, event.name, ua.ObjectIds.BaseEventType, fields_of(event)
            )
        for station_object in self.objects:
            await station_object.build(server, index, ua)
        self._worker = asyncio.create_task(self._run_work())
        await server.start()

    async def _run_work(self) -> None:
        while True:
            await (await self._work.get())()

    async def tick(self) -> None:
        """The heartbeat; an error in the work of the server ends it."""
        if self._worker is not None and self._worker.done():
            self._worker.result()
        self._beats += 1
        for station_object in self.objects:
            await station_object.beat(self._beats)

    async def close(self) -> None:
        """Close connections."""
        if self._worker is not None:
            self._worker.cancel()
        if self._server is not None:
            await self._server.stop()

    def make_event(self, event: vision.VisionEvent) -> Any:
        """An event of a kind that the server knows, for one station."""
        from procon.line.opcua_events import StationEvent

        return StationEvent(event, self.event_types[event.name].nodeid)

    def argument(self, name: str, kind: Any) -> Any:
        """The description of an argument."""
        ua = self._ua
        described = ua.Argument()
        described.Name, described.DataType, described.ValueRank = name, ua.NodeId(kind.value), -1
        return described

    def refuse(self, reason: str) -> Any:
        """The answer to a call that does not fit its method, by the name of its status."""
        return self._ua.StatusCode(getattr(self._ua.StatusCodes, reason))

    def answer(self, outputs: Sequence[str], error: int) -> list[Any]:
        """What a method returns."""
        ua = self._ua
        texts = [ua.Variant(text, ua.VariantType.String) for text in outputs]
        return [*texts, ua.Variant(error, ua.VariantType.Int32)]

    async def write(self, node: Any, value: Any, kind: Any) -> None:
        """Write the value of a variable."""
        ua = self._ua
        await self._server.write_attribute_value(node.nodeid, ua.DataValue(ua.Variant(value, kind)))
