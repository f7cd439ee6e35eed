"""What Prometheus reads of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters of one application.

    Parameters
    ----------
    waiting : mapping of str to callable
        Tokens that wait, by model.
    """

    def __init__(self, waiting: Mapping[str, Callable[[], float]]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "ibert_requests", "Answered requests.", ["path", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "ibert_request_seconds", "Time to the answer.", ["path"], buckets=_SECONDS,
            registry=self._registry,
        )  # fmt: skip
        self.texts = Counter(
            "ibert_texts", "Texts that were computed.", ["model"], registry=self._registry
        )
        self.tokens = Counter(
            "ibert_tokens", "Tokens that were computed.", ["model"], registry=self._registry
        )
        self.batch_texts = Histogram(
            "ibert_batch_texts", "Texts of a batch.", ["model"], buckets=_SIZES,
            registry=self._registry,
        )  # fmt: skip
        gauge = Gauge(
            "ibert_waiting_tokens", "Tokens that wait.", ["model"], registry=self._registry
        )
        for model, tokens in waiting.items():
            gauge.labels(model).set_function(tokens)

    def batch(self, model: str, texts: int, tokens: int) -> None:
        """Count a batch that was computed."""
        self.texts.labels(model).inc(texts)
        self.tokens.labels(model).inc(tokens)
        self.batch_texts.labels(model).observe(texts)

    def text(self) -> bytes:
        """Everything in Prometheus's format."""
        return generate_latest(self._registry)
