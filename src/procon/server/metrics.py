"""Prometheus metrics: latency, queue, verdicts and the distribution of scores, per model."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SCORES = tuple(round(0.05 * step, 2) for step in range(1, 41))  # residuals of unit vectors: 0 to 2


class ServerMetrics(Collector):
    """The metrics of one server; ``gauges`` is called whenever they are collected."""

    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self._gauges = gauges
        self._registry = registry = CollectorRegistry()
        help_text, labels = "From the first byte of a request to its response.", ["route", "model"]
        self._seconds = Histogram("procon_request_seconds", help_text, labels, buckets=_SECONDS, registry=registry)
        self._answers = Counter("procon_answers", "Responses by status.", ["status"], registry=registry)
        self._verdicts = Counter("procon_verdicts", "Images scored.", ["model", "verdict"], registry=registry)
        self._scores = Histogram("procon_score", "Image scores.", ["model"], buckets=_SCORES, registry=registry)
        registry.register(self)

    @contextmanager
    def record_time(self, route: str, model: str) -> Iterator[None]:
        """Record how long a request took, if it succeeds."""
        started = time.perf_counter()
        yield
        self._seconds.labels(route, model).observe(time.perf_counter() - started)

    def count_score(self, model: str, score: float, is_anomalous: bool | None) -> None:
        """Count a verdict."""
        verdict = "unknown" if is_anomalous is None else "anomalous" if is_anomalous else "good"
        self._verdicts.labels(model, verdict).inc()
        self._scores.labels(model).observe(score)

    def count_answer(self, status: int) -> None:
        """Count a response."""
        self._answers.labels(str(status)).inc()

    def render_text(self) -> bytes:
        """The text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The gauges, for the registry."""
        for name, value in self._gauges().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            short = name.removesuffix("_total")
            yield kind(f"procon_{short}", short.replace("_", " ").capitalize() + ".", value=value)
