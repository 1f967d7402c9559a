"""Numbers as people read them: counts, sizes of files, times."""


def count_of(number: int, noun: str) -> str:
    """``1 image``, ``2 images``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_bytes(count: float) -> str:
    """1572864 -> '2 MiB', 1610612736 -> '1.5 GiB'."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def human_time(seconds: float) -> str:
    """75 -> '75 s', 200 -> '3 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "a second"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
