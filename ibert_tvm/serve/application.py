"""The ASGI application: OpenAI's embeddings, Cohere's rerank, classes, health, metrics."""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from ..common.errors import IbertError, InputError, UsageError
from ..common.strict_json import JsonDict
from ..encoder import Encoder
from ..model.scores import ranked_classes, ranked_documents
from ..model.tokenization import TokenizedBatch
from ..version import __version__
from .batcher import Batcher, ClosedError, OverloadedError, UnavailableError
from .documents import ClassifyRequest, Document, EmbeddingsRequest, RerankRequest
from .gate import Gate, error_document
from .limits import Limits
from .metrics import Measured, Metrics
from .runners import WorkerLostError, runners_of

_logger = logging.getLogger(__name__)

_METHODS = ("encode", "rerank", "classify")
Text = str | tuple[str, str]


class _TimeoutError(IbertError):
    """A request that was not answered in time."""


class _UnknownModelError(UsageError):
    """A name that no model has."""


_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (OverloadedError, 429),
    (ClosedError, 503),
    (UnavailableError, 503),
    (WorkerLostError, 503),
    (_TimeoutError, 503),
    (_UnknownModelError, 404),
    (UsageError, 400),
)
"""Answers to errors, the first class that fits; everything else is the server's fault."""


class Service:
    """Models, and what runs them.

    Parameters
    ----------
    encoders
        Models by the names that clients use.
    limits
        How much is taken at a time.
    workers
        Processes that compute, of every model; 0 to compute in this one.

    Raises
    ------
    UsageError
        If a model gives no vectors, scores or classes of texts.
    LibraryError
        If a worker does not start.
    """

    def __init__(self, encoders: Mapping[str, Encoder], limits: Limits, workers: int) -> None:
        self.encoders, self.limits, self.workers = dict(encoders), limits, workers
        needed = {  # before anything is started: here it shows that a model cannot be served
            name: sorted({encoder.output_name(method) for method in self.methods(encoder)})
            for name, encoder in self.encoders.items()
        }
        self.metrics = Metrics()
        self._batchers: dict[str, Batcher] = {}
        try:
            for name, outputs in needed.items():
                library = self.encoders[name].library
                batcher = Batcher(
                    runners_of(library, outputs, workers, limits.timeout_seconds),
                    limits.batch_tokens,
                    limits.queue_tokens,
                    partial(self.metrics.batch, name),
                    self.metrics.restarts.labels(name).inc,
                )
                self._batchers[name] = batcher
                self.metrics.watch(name, batcher)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def methods(encoder: Encoder) -> list[str]:
        """What a model can do here; a `UsageError` if it is nothing."""
        able = []
        refusals = []
        for method in _METHODS:
            try:
                encoder.output_name(method)
                able.append(method)
            except UsageError as error:
                refusals.append(error)
        if not able:
            raise UsageError(
                "the model cannot be served",
                where=refusals[0].where,
                why=refusals[0].why,
                todo="serve models that give vectors, scores or classes of texts",
            )
        return able if len(encoder.labels) == 1 else [m for m in able if m != "rerank"]

    def choose(self, name: str | None, method: str) -> tuple[str, Encoder]:
        """Find the model of a request, which has to be able to do what is asked of it."""
        able = [n for n, encoder in self.encoders.items() if method in self.methods(encoder)]
        if name is not None and name not in self.encoders:
            raise _UnknownModelError(
                f"there is no model {name!r}", todo=f"use one of {', '.join(self.encoders)}"
            )
        if not able or (name is not None and name not in able):
            raise UsageError(
                f"no model here can {method}" if name is None else f"{name} cannot {method}",
                why=f"what can: {', '.join(able) or '(none)'}",
                todo="use one that can",
            )
        if name is None and len(able) > 1:
            raise UsageError("the request names no model", todo=f"use one of {', '.join(able)}")
        chosen = able[0] if name is None else name
        return chosen, self.encoders[chosen]

    async def run(
        self, name: str, method: str, texts: Sequence[Text], truncate: bool
    ) -> tuple[NDArray[np.float32], int]:
        """Compute texts together with those of other requests; also how many tokens they have."""
        if len(texts) > self.limits.texts:
            raise InputError(
                f"the request has {len(texts)} texts",
                why=f"one request has at most {self.limits.texts}",
                todo="send them in several requests",
            )
        try:
            return await asyncio.wait_for(
                self._answer(name, method, texts, truncate), self.limits.timeout_seconds
            )
        except asyncio.TimeoutError as error:
            raise _TimeoutError(
                "the request was not answered in time",
                why=f"{self.limits.timeout_seconds:g} s are over, and others were before it",
                todo="try again later",
            ) from error

    async def _answer(
        self, name: str, method: str, texts: Sequence[Text], truncate: bool
    ) -> tuple[NDArray[np.float32], int]:
        output = self.encoders[name].output_name(method)
        batch = await anyio.to_thread.run_sync(self._tokens, name, texts, truncate)
        values = await asyncio.wrap_future(self._batchers[name].submit(batch, output))
        return values, int(batch.attention_mask.sum())

    def close(self) -> None:
        """Compute what waits, and refuse what comes."""
        for batcher in self._batchers.values():
            batcher.close()

    def _tokens(self, name: str, texts: Sequence[Text], truncate: bool) -> TokenizedBatch:
        encoder = self.encoders[name]
        batch = encoder.tokenizer.encode(texts, encoder.max_seq_length, allow_empty=True)
        if batch.truncated and not truncate:
            raise InputError(
                f"text {batch.truncated[0]} is too long",
                why=f"a text has at most {encoder.max_seq_length} tokens here",
                todo="shorten it, or send truncate: true to have it cut off",
            )
        return batch

    def health(self) -> tuple[int, JsonDict]:
        """Status and document: 503 where a model has nothing that computes now."""
        alive = {name: batcher.alive for name, batcher in self._batchers.items()}
        wanted = max(1, self.workers)
        status = "ok"
        if min(alive.values()) < wanted:
            status = "degraded" if all(alive.values()) else "unavailable"
        document: JsonDict = {"status": status, "models": list(self.encoders)}
        if self.workers:
            document["workers"] = {n: {"alive": a, "wanted": wanted} for n, a in alive.items()}
        return 503 if status == "unavailable" else 200, document


def create_application(
    encoders: Mapping[str, Encoder],
    limits: Limits | None = None,
    api_key: str | None = None,
    workers: int = 0,
) -> FastAPI:
    """Make the application.

    Parameters
    ----------
    encoders
        Models by the names that clients use; at least one.
    limits
        How much is taken at a time.
    api_key
        Asked for with every request but ``/health``.
    workers
        Processes that compute, of every model: one that dies is started again, and what it was
        computing is computed again. 0 to compute in this process.

    Returns
    -------
    fastapi.FastAPI
        ``state.service`` is what runs the models, and must be closed: the application does so when
        its lifespan ends.

    Raises
    ------
    UsageError
        If a model gives no vectors, scores or classes of texts.
    LibraryError
        If a worker does not start.
    """
    limits = limits or Limits()
    service = Service(encoders, limits, workers)

    @asynccontextmanager
    async def lifespan(_application: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)

    application = FastAPI(
        title="ibert serve",
        version=__version__,
        description="Compiled integer-only encoders.",
        lifespan=lifespan,
    )
    application.state.service = service

    def refused(status: int) -> None:
        service.metrics.requests.labels("(refused)", str(status)).inc()

    application.add_middleware(Measured, metrics=service.metrics)
    # Added last, it comes first.
    application.add_middleware(Gate, limits=limits, api_key=api_key, refused=refused)
    application.add_exception_handler(IbertError, _answer_error)
    application.add_exception_handler(RequestValidationError, _answer_invalid)
    application.add_exception_handler(HTTPException, _answer_http)
    application.add_exception_handler(Exception, _answer_defect)
    _add_routes(application, service)
    return application


def _add_routes(application: FastAPI, service: Service) -> None:
    @application.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> Response:
        name, encoder = service.choose(request.model, "encode")
        if request.dimensions not in (None, encoder.embedding_size):
            raise UsageError(
                f"dimensions is {request.dimensions}",
                why=f"the vectors of {name} have {encoder.embedding_size}",
                todo="leave it out",
            )
        prefix = encoder.prompt_text(name=request.prompt_name)
        texts = [request.input] if isinstance(request.input, str) else request.input
        vectors, tokens = await service.run(
            name, "encode", [prefix + t for t in texts], request.truncate
        )
        vectors = encoder.finished(vectors)
        form = _base64 if request.encoding_format == "base64" else _as_is
        return _json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": form(vector)}
                    for index, vector in enumerate(vectors)
                ],
                "model": name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    @application.post("/rerank")
    @application.post("/v1/rerank")
    @application.post("/v2/rerank")
    async def rerank(request: RerankRequest) -> Response:
        name, encoder = service.choose(request.model, "rerank")
        function = encoder.score_function("rerank", request.function)
        query = encoder.prompt_text(name=request.prompt_name) + request.query
        documents = [d.text if isinstance(d, Document) else d for d in request.documents]
        pairs = [(query, document) for document in documents]
        logits, tokens = await service.run(name, "rerank", pairs, request.truncate)
        results: list[JsonDict] = [
            {"index": place, "relevance_score": score}
            for place, score in ranked_documents(logits, function, request.top_n)
        ]
        if request.return_documents:
            results = [{**r, "document": {"text": documents[r["index"]]}} for r in results]
        return _json(
            {
                "id": str(uuid.uuid4()),
                "model": name,
                "results": results,
                "meta": {"tokens": {"input_tokens": tokens}},
            }
        )

    @application.post("/classify")
    async def classify(request: ClassifyRequest) -> Response:
        name, encoder = service.choose(request.model, "classify")
        function = encoder.score_function("classify", request.function)
        least = encoder.thresholds(request.threshold)
        given = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        texts: list[Text] = [t if isinstance(t, str) else (t[0], t[1]) for t in given]
        logits, tokens = await service.run(name, "classify", texts, request.truncate)
        classes = ranked_classes(logits, encoder.labels, request.top_k, function, least)
        return _json({"model": name, "results": classes, "usage": {"total_tokens": tokens}})

    @application.get("/v1/models")
    async def models() -> Response:
        listed = [
            {
                "id": name,
                "object": "model",
                "owned_by": "ibert_tvm",
                "methods": service.methods(encoder),
                "max_tokens": encoder.max_seq_length,
            }
            for name, encoder in service.encoders.items()
        ]
        return _json({"object": "list", "data": listed})

    @application.get("/health")
    async def health() -> Response:
        status, document = service.health()
        return _json(document, status)

    @application.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _json(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def _as_is(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def _answer_error(_request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        _logger.error("a request failed: %s", error)
        return _json(error_document(500, "the request failed; the server's log says why"), 500)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return _json(error_document(status, str(error)), status, headers)


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    lines = [
        f"{'.'.join(str(part) for part in item['loc'][1:]) or 'the body'}: {item['msg']}"
        for item in error.errors()[:5]
    ]
    return _json(error_document(400, "; ".join(lines)), 400)


async def _answer_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error_document(error.status_code, str(error.detail)), error.status_code)


async def _answer_defect(_request: Request, _error: Exception) -> Response:
    return _json(error_document(500, "the request failed; the server's log says why"), 500)
