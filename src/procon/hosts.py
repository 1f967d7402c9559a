"""Who a request is for and whose page sent it: what HTTP servers check before they act."""

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[(?P<v6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(:(?P<port>[0-9]{1,5}))?")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_local_host(values: Sequence[str]) -> bool:
    """Whether the ``Host`` headers of a request are exactly one, which names this machine."""
    match = _HOST.fullmatch(values[0]) if len(values) == 1 else None
    return match is not None and int(match["port"] or 0) < 2**16 and is_loopback(match["v6"] or match["name"])


def is_same_origin(header: Callable[[str], str | None]) -> bool:
    """Whether a request comes from no page, or from a page of the server itself; ``header`` gives headers by name."""
    origin = header("origin")
    if header("sec-fetch-site") in ("cross-site", "same-site"):
        return False
    try:
        return origin is None or urlsplit(origin).netloc == header("host")
    except ValueError:
        return False
