"""The Modbus registers of a station: the one table behind the server, its tests and the page for PLC programmers."""

from dataclasses import dataclass
from typing import Literal

BLOCK = 100  # registers of a station
STATUS = 20  # offset of the first register that the line writes
LENGTH = 52  # registers of a station in use
STATES = ("loading", "ready", "busy", "paused", "error", "stopped")
SCORE_SCALE = 1000  # a score at the threshold is this


@dataclass(frozen=True)
class Register:
    """One value in holding registers."""

    name: str
    offset: int  # from the first register of the station
    writer: Literal["PLC", "line"]
    meaning: str
    words: Literal[1, 2] = 1  # 2: unsigned 32 bit, high word first


REGISTERS = (
    Register("trigger", 0, "PLC", "0 -> 1: inspect a part. 1 -> 0: the result was read"),
    Register("job", 1, "PLC", "number of the model, from 1; 0: the one in use"),
    Register("part", 2, "PLC", "number of the part; comes back with the result", 2),
    Register("pause", 4, "PLC", "1: take no parts, answer triggers with no verdict; 0: go on"),
    Register("restart", 5, "PLC", "0 -> 1: restart this station; a part in work gets no verdict"),
    Register("heartbeat", 20, "line", "counts up every 100 ms, 65535 -> 0; if it stands still, the line is dead"),
    Register("state", 21, "line", ", ".join(f"{number}: {state}" for number, state in enumerate(STATES))),
    Register("ready", 22, "line", "1: a trigger begins an inspection that can end in a verdict"),
    Register("busy", 23, "line", "1: a part is in work; triggers are refused and counted in overruns"),
    Register("done", 24, "line", "1: the result of the triggered part is here, until trigger is 0"),
    Register("pass", 25, "line", "1: the part is good. Nothing else means good"),
    Register("fail", 26, "line", "1: the part is anomalous"),
    Register("no_verdict", 27, "line", "1: there is no verdict; see cause. Treat the part as not inspected"),
    Register("error", 28, "line", "1: the station cannot give verdicts now (camera, model, disk)"),
    Register("cause", 29, "line", "why there is no verdict, as in the table of causes"),
    Register("overruns", 30, "line", "triggers that were refused because a part was in work"),
    Register("job_in_use", 31, "line", "number of the model of the next part"),
    Register("result_part", 32, "line", "number of the part that the result belongs to", 2),
    Register("result_count", 34, "line", "results since the line started", 2),
    Register("score", 36, "line", f"{SCORE_SCALE} x score / threshold, rounded up; above {SCORE_SCALE} is anomalous"),
    Register("regions", 37, "line", "number of regions"),
    Register("region_left", 38, "line", "box of the strongest region, in pixels of the image"),
    Register("region_top", 39, "line", "see region_left"),
    Register("region_right", 40, "line", "see region_left"),
    Register("region_bottom", 41, "line", "see region_left"),
    Register("milliseconds", 42, "line", "time that the inspection took", 2),
    Register("model", 44, "line", "first 32 bits of the revision of the model", 2),
    Register("restarted", 46, "line", "1: the line has restarted, and no part was triggered since"),
    Register("station_restarts", 47, "line", "restarts of this station alone since the line started"),
    Register("withdrawn", 48, "line", "results that were withdrawn because nobody acknowledged them"),
    Register("deadline", 49, "line", "deadline of a part in milliseconds; 0: none", 2),
    Register("layout", 51, "line", "version of this table: 1"),
)
BY_NAME = {register.name: register for register in REGISTERS}
LAYOUT = 1


def encode_status(values: dict[str, int]) -> list[int]:
    """The registers from STATUS to LENGTH; a value beyond its register becomes the largest that fits."""
    words = [0] * (LENGTH - STATUS)
    for name, value in values.items():
        register = BY_NAME[name]
        place, most = register.offset - STATUS, 2 ** (16 * register.words) - 1
        fits = min(max(value, 0), most)
        words[place : place + register.words] = [fits] if register.words == 1 else [fits >> 16, fits & 0xFFFF]
    return words


def decode_register(words: list[int], name: str, first: int = 0) -> int:
    """A value from registers that were read from offset ``first`` on."""
    register = BY_NAME[name]
    place = register.offset - first
    return words[place] if register.words == 1 else words[place] << 16 | words[place + 1]
