"""How long a call takes."""

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and spread (max - min)."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), max(times) - min(times)
