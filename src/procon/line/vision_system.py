"""What the OPC UA server has of the Machine Vision companion specification (OPC 40100-1): the tables behind the server,
its tests and the page of the docs.

Names and numbers of states are those of the specification. Its NodeSet is not loaded: nodes have simple types and are
in the namespace below.
"""

from dataclasses import dataclass
from typing import Literal

from procon.line.reporting import State

NAMESPACE = "urn:procon:line"
SPECIFICATION = "OPC 40100-1 (Machine Vision, part 1)"
Kind = Literal["String", "Double", "Int32", "UInt32", "Boolean", "DateTime"]


@dataclass(frozen=True)
class VisionState:
    """A state; with ``outer``, one of the automatic mode inside Operational."""

    name: str
    number: int
    meaning: str
    automatic: bool = False


PREOPERATIONAL = VisionState("Preoperational", 1, "the model is being loaded")
HALTED = VisionState("Halted", 2, "after Halt, until Reset")
ERROR = VisionState("Error", 3, "no verdict can be given: camera, model or disk; it is left when the cause is gone")
OPERATIONAL = VisionState("Operational", 4, "see CurrentState of AutomaticModeStateMachine")
INITIALIZED = VisionState("Initialized", 5, "paused; triggers get no verdict", True)
READY = VisionState("Ready", 6, "waits for StartSingleJob or another trigger", True)
SINGLE = VisionState("SingleExecution", 7, "a triggered part is in work", True)
CONTINUOUS = VisionState("ContinuousExecution", 8, "takes images by itself", True)
STATES_OF_VISION = (PREOPERATIONAL, HALTED, ERROR, OPERATIONAL, INITIALIZED, READY, SINGLE, CONTINUOUS)


def vision_state(state: State, *, triggered: bool, busy: bool, halted: bool) -> VisionState:
    """The state of a station in the words of the specification."""
    if halted or state == "stopped":
        return HALTED
    if state in ("loading", "error", "paused"):
        return {"loading": PREOPERATIONAL, "error": ERROR, "paused": INITIALIZED}[state]
    if not triggered:
        return CONTINUOUS
    return SINGLE if busy or state == "busy" else READY


@dataclass(frozen=True)
class VisionMethod:
    """A method; arguments are all strings. It returns ``Error``, 0 or a number of ERRORS."""

    path: str  # object that it belongs to
    name: str
    meaning: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # before Error


MACHINE = "VisionStateMachine"
AUTOMATIC = "VisionStateMachine/AutomaticModeStateMachine"
METHODS = (
    VisionMethod(MACHINE, "Halt", "take no parts until Reset; a part in work gets no verdict"),
    VisionMethod(MACHINE, "Reset", "restart the station and go on; a part in work gets no verdict"),
    VisionMethod(MACHINE, "SelectModeAutomatic", "go on from Preoperational; there is no other mode"),
    VisionMethod(
        AUTOMATIC,
        "StartSingleJob",
        "inspect a part; an empty recipe keeps the one in use, an empty image takes the one that the source names",
        ("PartId", "RecipeId", "Image"),
        ("JobId",),
    ),
    VisionMethod(AUTOMATIC, "StartContinuous", "go on; refused by a station that is triggered"),
    VisionMethod(AUTOMATIC, "Stop", "pause; the part in work is finished"),
    VisionMethod(AUTOMATIC, "Abort", "restart the station and pause; a part in work gets no verdict"),
    VisionMethod(AUTOMATIC, "Reset", "pause: back to Initialized"),
    VisionMethod("RecipeManagement", "PrepareRecipe", "score the next parts with this model", ("RecipeId",)),
    VisionMethod(
        "ResultManagement", "GetResultById", "one of the last 100 results, as JSON", ("ResultId",), ("Result",)
    ),
)
ERRORS = {0: "done", 1: "busy or not ready", 2: "not possible for this station", 3: "no such recipe or result"}


@dataclass(frozen=True)
class VisionVariable:
    """A value of the last result, or of the station."""

    name: str
    kind: Kind
    meaning: str


RESULT_VARIABLES = (
    VisionVariable("ResultId", "String", "id of the result, the same on every output"),
    VisionVariable("PartId", "String", "as the trigger named it"),
    VisionVariable("Verdict", "String", "good, anomalous or none. Nothing but good means good"),
    VisionVariable("Cause", "String", "why there is no verdict, as in the table of causes"),
    VisionVariable("Reason", "String", "the same as a sentence"),
    VisionVariable("Score", "Double", "NaN where there is no verdict"),
    VisionVariable("Threshold", "Double", "of the score; NaN where there is no verdict"),
    VisionVariable("Regions", "String", "JSON: box, area and peak of each"),
    VisionVariable("InternalRecipeId", "String", "revision of the model"),
    VisionVariable("Source", "String", "image"),
    VisionVariable("CreationTime", "DateTime", "when it was scored"),
    VisionVariable("ProcessingSeconds", "Double", "time that the inspection took"),
    VisionVariable("ResultContent", "String", "the whole result as JSON, written last, in one piece"),
)
STATION_VARIABLES = (
    VisionVariable("ResultCount", "UInt32", "results since the start"),
    VisionVariable("StationRestarts", "UInt32", "restarts of this station alone since the start"),
    VisionVariable("Restarted", "Boolean", "the line was restarted: there was a process before this one"),
    VisionVariable("RecipeId", "String", "name of the model in use"),
    VisionVariable("Heartbeat", "UInt32", "counts up every 100 ms"),
)


@dataclass(frozen=True)
class VisionEvent:
    """An event; its source is the object of the station."""

    name: str
    severity: int
    meaning: str
    fields: tuple[str, ...] = ()  # strings, beyond those of the result


RESULT_READY = "ResultReadyEventType"
EVENTS = (
    VisionEvent(RESULT_READY, 200, "a part has its result; all result variables are its fields"),
    VisionEvent("JobStartedEventType", 100, "a part is in work", ("JobId", "PartId")),
    VisionEvent("StateChangedEventType", 100, "another state", ("FromState", "ToState")),
    VisionEvent("ErrorEventType", 800, "the station has entered Error", ("Reason",)),
    VisionEvent("ErrorResolvedEventType", 300, "the station has left Error", ("Reason",)),
    VisionEvent("VisionDiagnosticInfoEventType", 400, "a station was restarted, or a part got no verdict", ("Reason",)),
)
NOT_COVERED = (
    "the NodeSet with its types and structured arguments (PartIdDataType ...): arguments are strings here",
    "ConfigurationManagement, SafetyStateManagement, step models, simulation mode",
    "AddRecipe, files of recipes and results, products, GetResultListFiltered, result handles",
    "ConfirmAll and conditions that are acknowledged: errors are plain events",
    "the events RecipePrepared, Ready, AcquisitionDone, EnterStepSequence, NextStep, LeaveStepSequence",
)
