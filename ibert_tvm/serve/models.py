"""The models of a server: each a library with what computes it, replaced by another one on demand.

A request holds the model that it began with: a new library takes the place of the old one for later
requests, and the old one is closed when nobody has it any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread
import numpy as np

from ..common.errors import IbertError, InputError, UsageError
from ..common.strict_json import JsonDict
from ..common.types import Floats
from ..encoder import Encoder
from ..encoder.prepared import Options, prepared_library
from ..frontend.sources import is_source
from ..runtime.library_file import read_metadata
from .batcher import Batcher, Row
from .limits import Limits
from .metrics import Metrics
from .runners import runners_of
from .tokenising import Text, Tokenising

_logger = logging.getLogger(__name__)

METHODS = ("encode", "rerank", "classify")
_POLL_SECONDS = 0.01
_PROBE = "a text"
_PROBES = ("a text", "This is it.", "12")
_OWN_IDS = (
    "make ids with the model's own tokenizer, or send texts (langchain's OpenAIEmbeddings does so "
    "with check_embedding_ctx_length=False)"
)
Ids = Sequence[Sequence[int]]
Load = Callable[[str], Encoder]


class RequestTimeoutError(IbertError):
    """A request that was not answered in time."""


class UnknownModelError(UsageError):
    """A name that no model has."""


class ReloadError(IbertError):
    """A library that cannot take the place of the one that runs, which goes on."""


def load_copy(path: Path, num_threads: int | None, device: str | None) -> Encoder:
    """Load a model from a copy in memory: whatever is written into its file changes nothing.

    Processes that compute map the same copy, which goes when nothing refers to it any more.

    Parameters
    ----------
    path, num_threads, device
        As `Encoder` takes.

    Raises
    ------
    IbertError
        As `Encoder` raises.
    """
    if path.is_dir() or is_source(path):
        path = prepared_library(path, Options())
    read_metadata(path)  # errors name the file and not its copy
    descriptor = os.memfd_create(path.name)
    try:
        with path.open("rb") as stream:
            while os.sendfile(descriptor, stream.fileno(), None, 2**30):
                pass
        copy = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        encoder = Encoder(copy, num_threads=num_threads, device=device)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(encoder, os.close, descriptor)
    return encoder


def methods_of(encoder: Encoder) -> tuple[str, ...]:
    """What a model can do here; a `UsageError` if it is nothing."""
    able = []
    refusals = []
    for method in METHODS:
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
    return tuple(m for m in able if m != "rerank" or len(encoder.labels) == 1)


def _special_tokens(encoder: Encoder) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts first and last around every text, each a list of 0 or 1."""
    probes = encoder.tokenizer.encode(_PROBES, encoder.max_seq_length, allow_empty=True)
    rows = [
        ids[mask == 1].tolist()
        for ids, mask in zip(probes.input_ids, probes.attention_mask, strict=True)
    ]
    firsts, lasts = {row[0] for row in rows}, {row[-1] for row in rows}
    return (list(firsts) if len(firsts) == 1 else [], list(lasts) if len(lasts) == 1 else [])


class Model:
    """One library that serves.

    Parameters
    ----------
    name
        What clients call it.
    encoder
        The library. With workers it is closed: these load it again.
    limits, workers, metrics
        As of the service.

    Attributes
    ----------
    methods
        What it can do.
    digest
        SHA-256 that stands for all that the library holds.
    users
        Requests that have it.
    tokenising, batcher
        What texts go through.
    """

    def __init__(
        self, name: str, encoder: Encoder, limits: Limits, workers: int, metrics: Metrics
    ) -> None:
        self.name, self.encoder, self.limits = name, encoder, limits
        self.methods = methods_of(encoder)
        self.digest = encoder.library.metadata.digest
        self.users = 0
        outputs = sorted({encoder.output_name(method) for method in self.methods})
        runners = runners_of(encoder.library, name, outputs, workers, limits.timeout_seconds)
        self.batcher = Batcher(
            runners,
            limits.batch_tokens,
            limits.queue_tokens,
            partial(metrics.batch, name),
            metrics.restarts.labels(name).inc,
        )
        self.tokenising = Tokenising(encoder.tokenizer, encoder.max_seq_length, limits.characters)
        if workers:
            encoder.close()
        self._warm_texts = len(runners)
        self._special = _special_tokens(encoder)

    @property
    def shape(self) -> JsonDict:
        """What clients rely on, whatever the weights are."""
        return {
            "methods": list(self.methods),
            "channels of vectors": self.encoder.embedding_size,
            "labels": list(self.encoder.labels),
        }

    def warm(self) -> None:
        """Compute a text with everything that computes.

        Raises
        ------
        Exception
            As computing raises.
        """
        rows = self.tokenising.submit([_PROBE] * self._warm_texts, True).result()
        output = self.encoder.output_name(self.methods[0])
        self.batcher.submit(rows, output).result(self.limits.timeout_seconds)

    async def run(self, method: str, texts: Sequence[Text], truncate: bool) -> tuple[Floats, int]:
        """Compute texts together with those of other requests; also how many tokens they have."""
        self._check_count(texts)
        return await self._in_time(method, self._tokens(texts, truncate))

    async def _tokens(self, texts: Sequence[Text], truncate: bool) -> list[Row]:
        rows = self.tokenising.submit(texts, truncate)
        return rows.result() if rows.done() else await asyncio.wrap_future(rows)

    async def run_ids(self, method: str, ids: Ids) -> tuple[Floats, int]:
        """The same of texts that come as token ids, which are computed as they are.

        Raises
        ------
        InputError
            If one has too many tokens, an id that the model does not know, or not the model's
            special tokens, as ids of another vocabulary have not.
        """
        self._check_count(ids)
        longest, size = self.encoder.max_seq_length, self.encoder.library.metadata.info.vocab_size
        for index, row in enumerate(ids):
            if len(row) > longest:
                raise InputError(
                    f"text {index} is too long",
                    why=f"it has {len(row)} token ids, and a text has at most {longest} here",
                    todo="send fewer; ids are not cut off",
                )
            wrong = next((place for place, one in enumerate(row) if not 0 <= one < size), None)
            if wrong is not None:
                raise InputError(
                    f"text {index} has a token that the model does not know",
                    why=f"its id {wrong} is {row[wrong]}, and the model's table has {size} rows",
                    todo=_OWN_IDS,
                )
            begin, end = self._special
            if row[: len(begin)] != begin or row[len(row) - len(end) :] != end:
                raise InputError(
                    f"text {index} has not this model's special tokens",
                    why=f"its ids begin with {row[:1]} and end with {row[-1:]}; those of the "
                    f"model's tokenizer begin with {begin} and end with {end}",
                    todo=_OWN_IDS,
                )

        async def rows() -> list[Row]:
            return [(np.array(row, np.int32), np.zeros(len(row), np.int32)) for row in ids]

        return await self._in_time(method, rows())

    def _check_count(self, texts: Sequence[object]) -> None:
        if len(texts) > self.limits.texts:
            raise InputError(
                f"the request has {len(texts)} texts",
                why=f"one request has at most {self.limits.texts}",
                todo="send them in several requests",
            )

    async def _in_time(self, method: str, coming: Awaitable[list[Row]]) -> tuple[Floats, int]:
        try:
            return await asyncio.wait_for(
                self._computed(method, coming), self.limits.timeout_seconds
            )
        except asyncio.TimeoutError as error:
            raise RequestTimeoutError(
                "the request was not answered in time",
                why=f"{self.limits.timeout_seconds:g} s are over, and others were before it",
                todo="try again later",
            ) from error

    async def _computed(self, method: str, coming: Awaitable[list[Row]]) -> tuple[Floats, int]:
        rows = await coming
        output = self.encoder.output_name(method)
        values = await asyncio.wrap_future(self.batcher.submit(rows, output))
        return values, sum(len(ids) for ids, _ in rows)

    def close(self, library: bool = False) -> None:
        """Compute what waits, and refuse what comes; also let go of the library."""
        self.tokenising.close()
        self.batcher.close()
        if library and (why := self.encoder.library.close()):
            _logger.info("the library %s stays in memory: %s", self.digest, why)


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
    load
        Loads a model by its name, again, from where it came from; None where that is not offered.

    Raises
    ------
    UsageError
        If a model gives no vectors, scores or classes of texts.
    LibraryError
        If a worker does not start.
    """

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        limits: Limits,
        workers: int,
        load: Load | None = None,
    ) -> None:
        self.limits, self.workers = limits, workers
        self.metrics = Metrics()
        self.models: dict[str, Model] = {}
        self._load, self._reloading = load, asyncio.Lock()
        for encoder in encoders.values():
            methods_of(encoder)  # before anything is started
        try:
            for name, encoder in encoders.items():
                self._put(Model(name, encoder, limits, workers, self.metrics))
        except BaseException:
            self.close()
            raise

    def _put(self, model: Model) -> None:
        self.models[model.name] = model
        self.metrics.watch(model.name, model.batcher)

    @contextmanager
    def use(self, name: str | None, method: str) -> Iterator[Model]:
        """The model of a request, which has to be able to do what is asked of it."""
        model = self._choose(name, method)
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1

    def _choose(self, name: str | None, method: str) -> Model:
        able = [n for n, model in self.models.items() if method in model.methods]
        if name is not None and name not in self.models:
            raise UnknownModelError(
                f"there is no model {name!r}", todo=f"use one of {', '.join(self.models)}"
            )
        if not able or (name is not None and name not in able):
            raise UsageError(
                f"no model here can {method}" if name is None else f"{name} cannot {method}",
                why=f"what can: {', '.join(able) or '(none)'}",
                todo="use one that can",
            )
        if name is None and len(able) > 1:
            raise UsageError("the request names no model", todo=f"use one of {', '.join(able)}")
        return self.models[able[0] if name is None else name]

    async def reload(self, name: str) -> bool:
        """Load the library of a model again, and let it take over; False if it is the same.

        Requests that run are answered by the old one, which is then closed.

        Raises
        ------
        UnknownModelError
            If no model has the name.
        ReloadError
            If the new one cannot be loaded, does not run, or serves something else: the old one
            goes on.
        """
        if name not in self.models or self._load is None:
            raise UnknownModelError(
                f"there is no model {name!r}", todo=f"use one of {', '.join(self.models)}"
            )
        async with self._reloading:
            old = self.models[name]
            try:
                new = await anyio.to_thread.run_sync(self._successor, self._load, old)
            except Exception as error:
                why = str(error)
                if isinstance(error, IbertError):
                    why = ": ".join(filter(None, (error.what, error.why)))
                _logger.error("%s is not replaced: %s", name, why)
                raise ReloadError(
                    f"{name} is not replaced, and the library of before serves",
                    why=why,
                    todo="put a whole library of the same kind in its place, and ask again",
                ) from error
            if new is None:
                return False
            self._put(new)
            while old.users:  # each for as long as a request may take
                await asyncio.sleep(_POLL_SECONDS)
            await anyio.to_thread.run_sync(old.close, True)
        _logger.info("%s is now the library %s", name, new.digest)
        return True

    def _successor(self, load: Load, old: Model) -> Model | None:
        """A model that has computed something; None if its library is the one that runs."""
        encoder = load(old.name)
        if encoder.library.metadata.digest == old.digest:
            encoder.close()
            return None
        try:
            new = Model(old.name, encoder, self.limits, self.workers, self.metrics)
        except BaseException:
            encoder.close()
            raise
        try:
            differing = [key for key, value in old.shape.items() if new.shape[key] != value]
            if differing:
                key = differing[0]
                raise UsageError(
                    f"its {key} are {new.shape[key]}",
                    why=f"those of the library that runs are {old.shape[key]}",
                )
            new.warm()
        except BaseException:
            new.close(library=True)
            raise
        return new

    def close(self) -> None:
        """Compute what waits, and refuse what comes."""
        for model in self.models.values():
            model.close()

    def health(self) -> tuple[int, JsonDict]:
        """Status and document: 503 where a model has nothing that computes now."""
        alive = {name: model.batcher.alive for name, model in self.models.items()}
        wanted = max(1, self.workers)
        status = "ok"
        if min(alive.values()) < wanted:
            status = "degraded" if all(alive.values()) else "unavailable"
        document: JsonDict = {"status": status, "models": list(self.models)}
        if self.workers:
            document["workers"] = {n: {"alive": a, "wanted": wanted} for n, a in alive.items()}
        return 503 if status == "unavailable" else 200, document
