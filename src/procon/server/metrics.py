"""What Prometheus reads: latency, queue, verdicts and the distribution of scores, per model."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SCORES = tuple(round(0.05 * step, 2) for step in range(1, 41))  # residuals of unit vectors: 0 to 2


class Metrics:
    """The instruments of one server."""

    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "procon_request_seconds",
            "From the first byte of a request to its answer.",
            ["route", "model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.answers = Counter("procon_answers", "Answers by status.", ["status"], registry=self.registry)
        self.verdicts = Counter("procon_verdicts", "Images scored.", ["model", "verdict"], registry=self.registry)
        self.scores = Histogram("procon_score", "Image scores.", ["model"], buckets=_SCORES, registry=self.registry)
        self.registry.register(_Gauges(gauges))

    def scored(self, model: str, score: float, is_anomalous: bool | None) -> None:
        """Count a verdict."""
        verdict = "unknown" if is_anomalous is None else "anomalous" if is_anomalous else "good"
        self.verdicts.labels(model, verdict).inc()
        self.scores.labels(model).observe(score)

    def answered(self, status: int) -> None:
        """Count an answer."""
        self.answers.labels(str(status)).inc()

    def page(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)


class _Gauges:
    """Values that are read when they are asked for."""

    def __init__(self, values: Callable[[], dict[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, value in self._values().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            words = name.removesuffix("_total").replace("_", " ").capitalize() + "."
            yield kind(f"procon_{name.removesuffix('_total')}", words, value=value)
