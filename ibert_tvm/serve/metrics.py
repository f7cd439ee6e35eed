"""What Prometheus reads of a server."""

from __future__ import annotations

import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .batcher import Batcher
from .gate import Application, Message, Receive, Send

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)
        sizes = partial(Histogram, registry=self._registry, buckets=_SIZES)
        times = partial(Histogram, registry=self._registry, buckets=_SECONDS)
        self.requests = counter("ibert_requests", "Answered requests.", ["path", "status"])
        self.ended = counter("ibert_ended_connections", "Connections that were ended.", ["reason"])
        self.seconds = times("ibert_request_seconds", "Time to the answer.", ["path"])
        self.texts = counter("ibert_texts", "Texts that were computed.", ["model"])
        self.tokens = counter("ibert_tokens", "Tokens that were computed.", ["model"])
        self.batch_texts = sizes("ibert_batch_texts", "Texts of a batch.", ["model"])
        self._waiting = gauge("ibert_waiting_tokens", "Tokens that wait.", ["model"])
        self._alive = gauge("ibert_workers_alive", "What can compute now.", ["model"])
        self.restarts = counter(
            "ibert_worker_restarts", "How often workers were started again.", ["model"]
        )

    def watch(self, model: str, batcher: Batcher) -> None:
        """Tell what waits for a model, and what computes it, whenever that is asked."""
        self._waiting.labels(model).set_function(lambda: batcher.waiting_tokens)
        self._alive.labels(model).set_function(lambda: batcher.alive)

    def batch(self, model: str, texts: int, tokens: int) -> None:
        """Count a batch that was computed."""
        self.texts.labels(model).inc(texts)
        self.tokens.labels(model).inc(tokens)
        self.batch_texts.labels(model).observe(texts)

    def text(self) -> bytes:
        """Everything in Prometheus's format."""
        return generate_latest(self._registry)


class Measured:
    """ASGI middleware that counts and times requests by their route.

    By their path would not do: one that there is not could be anything.

    Parameters
    ----------
    application : callable
        What is behind it.
    metrics
        Where to count.
    """

    def __init__(self, application: Application, metrics: Metrics) -> None:
        self._application, self._metrics = application, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection as ASGI asks for."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                path = route.path if route is not None else "(other)"
                self._metrics.requests.labels(path, str(message["status"])).inc()
                self._metrics.seconds.labels(path).observe(time.perf_counter() - started)
            await send(message)

        await self._application(scope, receive, counted)
