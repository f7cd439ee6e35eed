"""The ASGI application: OpenAI's embeddings, Cohere's rerank, classes, health, metrics."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import anyio.to_thread
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from ..common.content_policy import content_policy
from ..common.errors import IbertError, UsageError
from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Floats
from ..common.version import __version__
from ..encoder import Encoder
from ..model.scores import normalized, ranked_classes, ranked_documents
from .batcher import ClosedError, OverloadedError, UnavailableError
from .connections import log_refusal
from .documents import (
    ANY_PATH,
    MODELS,
    ClassifyRequest,
    EmbeddingsRequest,
    ReloadRequest,
    RerankRequest,
    errors,
)
from .gate import Gate, error_document
from .limits import Limits
from .metrics import Measured
from .models import Load, Model, ReloadError, RequestTimeoutError, Service, UnknownModelError
from .runners import WorkerLostError

# The page ``/docs``: every request with its fields, and a form to try it.
#
# The page needs no network but the server, and says nothing of its models, so that it needs no key;
# the requests that it sends do.


def docs_page(openapi: JsonObject) -> str:
    """Make the page of an OpenAPI document."""
    style, script = _template("docs.css"), _template("docs.js")
    requests = [
        _operation(path, method, operation, openapi)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    return Template(_template("docs.html")).substitute(
        policy=content_policy(style, script, "'self'"),
        style=style,
        script=script,
        title=escape(f"{openapi['info']['title']} {openapi['info']['version']}"),
        description=escape(openapi["info"]["description"]),
        requests="".join(requests),
    )


def _template(name: str) -> str:
    return files(__package__).joinpath("template", name).read_text(encoding="utf-8")


def _operation(path: str, method: str, operation: JsonObject, openapi: JsonObject) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    named = content.get("application/json", {}).get("schema", {}).get("$ref")
    fields = body = ""
    if named:
        request = openapi["components"]["schemas"][named.rpartition("/")[2]]
        fields = _fields(request, openapi)
        example = json.dumps(request["examples"][0], indent=2)
        rows = example.count("\n") + 1
        body = (
            f'<label>Body<textarea rows="{rows}" spellcheck="false">{escape(example)}</textarea>'
            "</label>"
        )
    given = {"method": method.upper(), "path": escape(path), "fields": fields, "body": body}
    description = escape(operation["description"])
    return Template(_template("request.html")).substitute(given, description=description)


def _fields(request: JsonObject, openapi: JsonObject) -> str:
    needed = request.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(field, openapi))}</td>"
        f"<td>{'required' if name in needed else escape(json.dumps(field.get('default')))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in request["properties"].items()
    ]
    heads = "".join(f"<th>{head}</th>" for head in ("field", "type", "default", "meaning"))
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def _type(field: JsonObject, openapi: JsonObject) -> str:
    """What a field takes, in words."""
    if "anyOf" in field:
        types: list[str] = [_type(each, openapi) for each in field["anyOf"]]
        return " or ".join(dict.fromkeys(types))
    if "enum" in field:
        return " or ".join(map(json.dumps, field["enum"]))
    if "$ref" in field:
        of: dict[str, Any] = openapi["components"]["schemas"][field["$ref"].rpartition("/")[2]]
        return f"object with {', '.join(of['properties'])}"
    if field.get("type") == "array":
        return f"list of {_type(field['items'], openapi)}"
    return str(field.get("type", "anything"))


_logger = logging.getLogger(__name__)

_DIGEST_HEADER = "x-model-digest"
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (OverloadedError, 429),
    (ClosedError, 503),
    (UnavailableError, 503),
    (WorkerLostError, 503),
    (RequestTimeoutError, 503),
    (UnknownModelError, 404),
    (ReloadError, 409),
    (UsageError, 400),
)
"""Answers to errors, the first class that fits; everything else is the server's fault."""


def create_application(
    encoders: Mapping[str, Encoder],
    limits: Limits | None = None,
    api_key: str | None = None,
    workers: int = 0,
    load: Load | None = None,
) -> FastAPI:
    """Make the application.

    Parameters
    ----------
    encoders
        Models by the names that clients use; at least one. With workers they are closed.
    limits
        How much is taken at a time.
    api_key
        Asked for with every request but ``/health`` and the page ``/docs``.
    workers
        Processes that compute, of every model: one that dies is started again, and what it was
        computing is computed again. 0 to compute in this process.
    load
        Loads a model again, by its name: with a key, ``/reload`` lets it take the place of the one
        that runs.

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
    service = Service(encoders, limits, workers, load)

    @asynccontextmanager
    async def lifespan(_application: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)

    application = FastAPI(
        title="ibert serve",
        version=__version__,
        description="Compiled integer-only encoders.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    application.state.service = service

    def refused(status: int, why: str) -> None:
        service.metrics.requests.labels("(refused)", str(status)).inc()
        log_refusal("a request was turned away", why)

    application.add_middleware(Measured, metrics=service.metrics)
    # Added last, it comes first.
    application.add_middleware(Gate, limits=limits, api_key=api_key, refused=refused)
    application.add_exception_handler(IbertError, _answer_error)
    application.add_exception_handler(RequestValidationError, _answer_invalid)
    application.add_exception_handler(HTTPException, _answer_http)
    application.add_exception_handler(Exception, _answer_defect)
    _add_routes(application, service)
    if api_key is not None and load is not None:
        _add_reload(application, service)
    _add_docs(application)
    return application


def _add_routes(application: FastAPI, service: Service) -> None:
    @application.post("/v1/embeddings", responses=errors(*MODELS))
    async def embeddings(request: EmbeddingsRequest) -> Response:
        """Vectors of texts, as OpenAI's embeddings."""
        with service.use(request.model, "encode") as model:
            encoder = model.encoder
            cut, size = request.dimensions, encoder.embedding_size or 0
            if cut is not None and cut > size:
                raise UsageError(
                    f"dimensions is {cut}",
                    why=f"the vectors of {model.name} have {size}",
                    todo=f"give at most {size}, or leave it out",
                )
            vectors, tokens = await _vectors(model, request)
        vectors = encoder.post_processing.finished(vectors, cut)
        if cut is not None and cut < size:
            vectors = normalized(vectors)
        as_text = request.encoding_format == "base64"
        return _answer(
            model,
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector}
                    for index, vector in enumerate(map(_base64, vectors) if as_text else vectors)
                ],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            },
        )

    @application.post("/rerank", responses=errors(*MODELS))
    @application.post("/v1/rerank", responses=errors(*MODELS))
    @application.post("/v2/rerank", responses=errors(*MODELS))
    async def rerank(request: RerankRequest) -> Response:
        """Documents in the order of their relevance to a query, as Cohere's rerank."""
        with service.use(request.model, "rerank") as model:
            encoder = model.encoder
            function = encoder.score_function("rerank", request.function)
            query = encoder.prompt_text(name=request.prompt_name) + request.query
            documents = request.documents
            pairs = [(query, document) for document in documents]
            logits, tokens = await model.run("rerank", pairs, request.truncate)
        results: list[JsonDict] = [
            {"index": place, "relevance_score": score}
            for place, score in ranked_documents(logits, function, request.top_n)
        ]
        if request.return_documents:
            results = [{**r, "document": {"text": documents[r["index"]]}} for r in results]
        return _answer(
            model,
            {
                "id": str(uuid.uuid4()),
                "results": results,
                "meta": {"tokens": {"input_tokens": tokens}},
            },
        )

    @application.post("/classify", responses=errors(*MODELS))
    async def classify(request: ClassifyRequest) -> Response:
        """Classes of texts, the likeliest first."""
        with service.use(request.model, "classify") as model:
            encoder = model.encoder
            function = encoder.score_function("classify", request.function)
            least = encoder.thresholds(request.threshold)
            logits, tokens = await model.run("classify", request.inputs, request.truncate)
        classes = ranked_classes(logits, encoder.labels, request.top_k, function, least)
        return _answer(model, {"results": classes, "usage": {"total_tokens": tokens}})

    @application.get("/v1/models", responses=errors(*ANY_PATH))
    async def models() -> Response:
        """The models, and what each can do."""
        listed = [
            {
                "id": name,
                "object": "model",
                "owned_by": "ibert_tvm",
                "methods": list(model.methods),
                "max_tokens": model.encoder.max_seq_length,
                "digest": model.digest,
            }
            for name, model in service.models.items()
        ]
        return _json({"object": "list", "data": listed})

    @application.get("/health", responses={503: {"description": "Nothing computes a model."}})
    async def health() -> Response:
        """Whether every model has something that computes it."""
        status, document = service.health()
        return _json(document, status)

    @application.get("/metrics", response_class=PlainTextResponse, responses=errors(*ANY_PATH))
    async def metrics() -> Response:
        """Counters and times, in the form of Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _vectors(model: Model, request: EmbeddingsRequest) -> tuple[Floats, int]:
    """Vectors of a request's texts behind their prompt, or of its token ids."""
    ids = [item for item in request.input if isinstance(item, list)]
    if not ids:
        prefix = model.encoder.prompt_text(name=request.prompt_name)
        texts = [prefix + item for item in request.input if isinstance(item, str)]
        return await model.run("encode", texts, request.truncate)
    if request.prompt_name is not None:
        raise UsageError(
            "token ids have no prompt",
            why="they are computed as they are",
            todo="leave prompt_name out, and put the ids of the prompt before those of the text",
        )
    return await model.run_ids("encode", ids)


def _add_reload(application: FastAPI, service: Service) -> None:
    @application.post("/reload", responses=errors(*MODELS, 409))
    async def reload(request: ReloadRequest) -> Response:
        """Load models again from their files."""
        names = list(service.models) if request.model is None else [request.model]
        changed = {name: await service.reload(name) for name in names}
        return _json(
            {
                "object": "list",
                "data": [
                    {"id": name, "digest": service.models[name].digest, "changed": changed[name]}
                    for name in names
                ],
            }
        )


def _add_docs(application: FastAPI) -> None:
    document = application.openapi()
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # FastAPI's own answer; ours is 400
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    application.openapi = lambda: document  # type: ignore[method-assign]
    page = docs_page(document)

    @application.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page, media_type="text/html")


def _answer(model: Model, document: JsonDict) -> Response:
    """An answer that says what library it is of."""
    named = {**document, "model": model.name, "system_fingerprint": model.digest}
    return _json(named, headers={_DIGEST_HEADER: model.digest})


def _json(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def _base64(vector: Floats) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def _answer_error(_request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        _logger.error("a request failed: %s", error)
        return _json(error_document(500, "the request failed; the server's log says why"), 500)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return _json(error_document(status, str(error)), status, headers)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    stated = request.headers.get("content-type", "")
    if not stated.partition(";")[0].strip().lower().endswith("json"):
        why = f"is {stated!r}" if stated else "is missing"
        what = f"the content type {why}; send the header content-type: application/json"
        return _json(error_document(400, what), 400)
    lines = [
        f"{'.'.join(str(part) for part in item['loc'][1:]) or 'the body'}: {item['msg']}"
        for item in error.errors()[:5]
    ]
    return _json(error_document(400, "; ".join(lines)), 400)


async def _answer_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    document = error_document(error.status_code, str(error.detail))
    return _json(document, error.status_code, error.headers)


async def _answer_defect(_request: Request, _error: Exception) -> Response:
    return _json(error_document(500, "the request failed; the server's log says why"), 500)
