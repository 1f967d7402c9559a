"""The events of the OPC UA server, as asyncua sends them; needs ``pip install 'procon[opcua]'``.

asyncua makes a deep copy of every field of an event for each client. The fields here are replaced and never changed, so
they need no copy, and a result leaves the server sooner.
"""

from typing import Any

from asyncua import ua
from asyncua.common.event_objects import BaseEvent

from procon.line import vision_system as vision


def fields_of(event: vision.VisionEvent) -> list[tuple[str, Any]]:
    """Name and type of the fields of an event beyond those that all events have."""
    if event.name == vision.RESULT_READY:
        return [(variable.name, ua.VariantType[variable.kind]) for variable in vision.RESULT_VARIABLES]
    return [(name, ua.VariantType.String) for name in event.fields]


class StationEvent(BaseEvent):  # type: ignore[misc]  # asyncua has no types
    """An event type of a station. Its fields are replaced for each event that is sent."""

    def __init__(self, event: vision.VisionEvent, event_type: Any) -> None:
        super().__init__(severity=event.severity)
        self.EventType = event_type
        for name, kind in fields_of(event):
            self.add_property(name, None, kind)

    def to_event_fields(self, select_clauses: Any) -> list[Any]:
        """The values that a client has asked for, in its order; without a value where there is no such field."""
        found = []
        for clause in select_clauses:
            path = [step.Name for step in clause.BrowsePath] or [ua.AttributeIds(clause.AttributeId).name]
            name = "/".join(path)
            value = vars(self).get(name) if name in self.data_types else None
            found.append(ua.Variant(None) if value is None else ua.Variant(value, self.data_types[name]))
        return found
