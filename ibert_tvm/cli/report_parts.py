"""What a page holds of one artefact: the documents of the commands that look at it.

Each is what that command prints with ``--json``: the command itself is called, and `compare` of
`ibert eval` with a float model that is imported once for all that compare with it.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..common.errors import LibraryError, TargetError, UsageError
from .options import AtLeastOne, Board, ImportOptions, MaybeOne, parse_sizes

if TYPE_CHECKING:
    from ..frontend.model import CanonicalModel
    from .result import CommandResult

_logger = logging.getLogger(__name__)

CERTIFICATE = "verify.json"
_MAX_CERTIFICATE, _MAX_DEPTH = 64 * 2**20, 16
_SEQ_LEN = 128
_SCALES = "values"


@dataclass(frozen=True)
class Job:
    """What `ibert report` looks at, and how.

    Attributes
    ----------
    path
        A library, a NAME.ibert folder, or a package for a microcontroller.
    model
        The NAME.ibert folder that PATH was compiled from: its graph and its layers.
    against
        The float model, to say how close the integer one is.
    text
        Texts that calibration has not seen, one per line; by default the package's.
    seq_len
        Truncate the texts to this many tokens; by default 128.
    limit
        Use only the first texts.
    layer_texts
        Use so many of the texts for layers, which NumPy evaluates.
    why
        Measure where quality is lost; takes minutes.
    bench
        Measure speed here.
    threads
        Threads to measure with, with commas.
    seconds
        How long to measure each shape.
    certificate
        What `ibert verify` wrote; by default verify.json beside PATH, if it is its.
    """

    path: Annotated[Path, Argument()]
    model: Path | None = None
    against: Path | None = None
    text: Path | None = None
    seq_len: str | None = None
    limit: MaybeOne = None
    layer_texts: AtLeastOne = 16
    why: Annotated[bool, Option("--why/--no-why")] = True
    bench: Annotated[bool, Option("--bench/--no-bench")] = True
    threads: str = "1"
    seconds: Annotated[float, Option(min=0.0)] = 1.0
    certificate: Path | None = None

    def other(self, path: Path, model: Path | None) -> Job:
        """The same of another artefact, without what is long and shown of one alone."""
        return replace(self, path=path, model=model, why=False, certificate=None)

    @property
    def kind(self) -> str:
        """What the artefact is, as `ibert inspect` calls it."""
        from ibert_tvm.targets.bare_metal import is_package

        if not self.path.is_dir():
            return "compiled library"
        return "microcontroller package" if is_package(self.path) else "quantised model"

    @property
    def folder(self) -> Path | None:
        """The quantised model, if there is one."""
        return self.path if self.kind == "quantised model" else self.model


def check_job(job: Job) -> None:
    """Refuse paths and options that cannot be, before anything is measured.

    Raises
    ------
    UsageError
        If there is nothing at a path, or no artefact, or models do not belong together.
    IbertError
        If an artefact cannot be read.
    """
    from ..frontend.sources import is_source

    for place in filter(None, (job.path, job.model)):
        if not place.exists():
            raise UsageError(f"there is nothing at {place}", todo="check the path")
    if is_source(job.path) and job.kind != "microcontroller package":
        raise UsageError(
            f"{job.path} is a model to import",
            why="a page is about what was made of one",
            todo="give it with --against, and first what `ibert quantize` or `ibert compile` wrote",
        )
    parse_sizes("--threads", job.threads)
    if job.text is not None and job.against is None:
        raise UsageError(
            "--text was given without --against",
            why="texts compare the integer model with the float one",
            todo="give the float model as well, with --against",
        )
    if job.model is None or job.model == job.path:
        return
    if job.kind == "quantised model":
        raise UsageError(
            "--model was given for a quantised model",
            where=str(job.path),
            why="it is the model itself",
            todo="leave --model out",
        )
    _check_pair(job)


def _check_pair(job: Job) -> None:
    """Refuse a model that an artefact was not made from, as far as both say."""
    from ..model.artefact import read_document

    assert job.model is not None
    said = _package(job.path) if job.kind == "microcontroller package" else _metadata(job.path)
    model = read_document(job.model)
    source = model["info"].get("source_sha256", "")
    scales = [output["scale"] for output in model["outputs"]]
    if said["source_sha256"] != source or [o["scale"] for o in said["outputs"]] != scales:
        raise UsageError(
            "the two do not belong together",
            where=f"{job.path} and {job.model}",
            why="they say different sources, or different scales of their outputs",
            todo="give the NAME.ibert folder that the artefact was compiled from, with --model",
        )


def _package(path: Path) -> dict[str, Any]:
    from ibert_tvm.targets.bare_metal import read_package

    return read_package(path)


def _metadata(path: Path) -> dict[str, Any]:
    """What `ibert inspect` says, without the scales per channel, which are megabytes."""
    from . import inspect

    document = inspect.document_of(path)
    return {name: value for name, value in document.items() if name != _SCALES}


def collect(jobs: Sequence[Job], source: ImportOptions) -> list[dict[str, Any]]:
    """Gather the documents of artefacts that are compared with one float model.

    Parameters
    ----------
    jobs : sequence of Job
        Checked; `against` is the same in each.
    source : ImportOptions
        How that is imported.

    Returns
    -------
    list of dict
        As `_collect` gives them.
    """
    first = jobs[0]

    @functools.cache
    def load(head: str) -> CanonicalModel:
        assert first.against is not None
        return source.load(first.against, head)

    return [_collect(job, load) for job in jobs]


def _collect(job: Job, load: Callable[[str], CanonicalModel]) -> dict[str, Any]:
    """Gather the documents of one artefact.

    Parameters
    ----------
    job : Job
        Checked.
    load : callable
        Gives the float model with a head.

    Returns
    -------
    dict
        JSON-able: each document, or None and the reason under ``missing``.
    """
    parts = _Parts(job, load)
    return {
        "name": job.path.name,
        "path": str(job.path),
        "kind": job.kind,
        "sha256": _digest(job),
        "package": _package(job.path) if job.kind == "microcontroller package" else None,
        "inspect": None if job.kind == "microcontroller package" else _metadata(job.path),
        "model": None if job.model is None else _metadata(job.model),
        "graph": parts.graph(),
        "eval": parts.fidelity(),
        "layers": parts.layers(),
        "why": parts.diagnosis(),
        "bench": parts.speed(),
        "certificate": parts.certificate(),
        "missing": parts.missing,
    }


def _digest(job: Job) -> str:
    """As certificates state it: of the file, or of the folder's manifest."""
    from ..common.files import files_sha256
    from ..common.integrity import MANIFEST

    return files_sha256([job.path / MANIFEST if job.path.is_dir() else job.path])


class _Parts:
    """The documents that take time or can be missing; the reasons for the latter."""

    def __init__(self, job: Job, load: Callable[[str], CanonicalModel]) -> None:
        self.job = job
        self._load = load
        self.missing: dict[str, str] = {}

    def _lacking(self, part: str, reason: str) -> dict[str, Any] | None:
        self.missing[part] = reason
        return None

    def graph(self) -> dict[str, Any] | None:
        """Of the integer program."""
        from ..model.artefact import QuantizedModel
        from ..report import program_graph
        from .progress import progress

        if self.job.folder is None:
            return self._lacking("graph", "--model NAME.ibert was not given")
        with progress("proving ranges"):
            return program_graph(QuantizedModel.load(self.job.folder))

    def fidelity(self) -> dict[str, Any] | None:
        """Of the artefact itself; of a model that NumPy evaluates `layers` says it."""
        if self.job.against is None:
            return self._lacking("fidelity", "--against MODEL was not given")
        if self.job.kind == "microcontroller package":
            return self._lacking("fidelity", "a package runs on a board; see that of its model")
        if self.job.kind == "quantised model":
            return self._evaluated("fidelity", self.job.path, self.job.layer_texts)
        return self._evaluated("fidelity", self.job.path, self.job.limit)

    def layers(self) -> dict[str, Any] | None:
        """Fidelity of the quantised model, with every value of it."""
        folder = self.job.folder
        if self.job.against is None or self.job.kind == "quantised model":
            return None  # said already
        if folder is None:
            return self._lacking("fidelity of layers", "--model NAME.ibert was not given")
        return self._evaluated("fidelity of layers", folder, self.job.layer_texts)

    def diagnosis(self) -> dict[str, Any] | None:
        """Where the quantised model loses quality."""
        if self.job.against is None or self.job.folder is None or not self.job.why:
            return None
        from .why import TEXTS

        # Without a limit the command takes so many from everywhere in the file.
        limit = None if self.job.limit is None else TEXTS
        return self._evaluated("worst texts", self.job.folder, limit, why=True)

    def _evaluated(
        self, part: str, path: Path, limit: int | None, why: bool = False
    ) -> dict[str, Any] | None:
        from .eval import compare

        against = self.job.against
        assert against is not None
        most = [count for count in (limit, self.job.limit) if count is not None]
        length = self.job.seq_len or str(_length(path))
        shortest = min(most, default=None)
        return self._tried(
            part,
            lambda: compare(path, against, self._load, self.job.text, length, shortest, why),
        )

    def speed(self) -> dict[str, Any] | None:
        """Of a library, on this machine."""
        if self.job.kind != "compiled library":
            return self._lacking("speed", f"this is a {self.job.kind}; libraries are measured")
        if not self.job.bench:
            return self._lacking("speed", "--no-bench was given")
        from ..runtime.library_file import read_metadata
        from . import bench

        metadata = read_metadata(self.job.path)
        threaded = metadata.runtime == "tvm" and metadata.device == "cpu"
        threads = self.job.threads if threaded else None
        return self._tried(
            "speed",
            lambda: bench.command(
                self.job.path,
                threads=threads,
                seconds=self.job.seconds,
                per_layer=True,
                board=Board(),
            ),
        )

    def _tried(self, part: str, command: Callable[[], CommandResult]) -> dict[str, Any] | None:
        """What a command says; the reason where this machine cannot run the library."""
        try:
            return _plain(command().document)
        except TargetError as error:
            reason = ": ".join(filter(None, (error.what, error.why)))
            _logger.warning("%s: no %s: %s", self.job.path.name, part, reason)
            return self._lacking(part, reason)

    def certificate(self) -> dict[str, Any] | None:
        """What `ibert verify` wrote of this very artefact."""
        given = self.job.certificate
        file = given or self.job.path.parent / CERTIFICATE
        if given is None and not file.is_file():
            return self._lacking("certificate", f"there is no {CERTIFICATE} beside it")
        try:
            document = _certificate(file)
        except LibraryError as error:
            if given is not None:
                raise
            return self._lacking("certificate", f"{error.what}: {error.why}")
        if document["artefact_sha256"] == _digest(self.job):
            return document
        why = f"{file} is that of another artefact, or of another state of this one"
        if given is None:
            return self._lacking("certificate", why)
        raise UsageError(
            "bad value for --certificate",
            where=str(self.job.path),
            why=why,
            todo="verify this artefact again, with `ibert verify`",
        )


def _certificate(file: Path) -> dict[str, Any]:
    """A certificate, if its seal is whole."""
    from ..common.errors import DocumentError
    from ..common.integrity import check_sealed
    from ..common.schema import FLAG, OBJECT, STRING, check, one_of
    from ..common.strict_json import read_json
    from ..verification.certificate import FORMAT, VERSION

    schema = {
        "format": one_of(FORMAT),
        "version": one_of(VERSION),
        "artefact": STRING,
        "artefact_sha256": STRING,
        "passed": FLAG,
        "complete": FLAG,
        "checks": [
            {
                "name": STRING,
                "passed": FLAG,
                "facts": OBJECT,
                "findings": [STRING],
                "not_run": STRING,
            }
        ],
    }
    try:
        document: dict[str, Any] = read_json(file, _MAX_CERTIFICATE, _MAX_DEPTH)
        check(document, schema)
        check_sealed(document)
    except DocumentError as error:
        raise LibraryError(
            f"cannot use the certificate {file}",
            where=error.where,
            why=error.what,
            todo="write it again with `ibert verify`",
        ) from error
    return document


def _length(path: Path) -> int:
    """Tokens that texts are truncated to where nobody says."""
    from ..model.artefact import read_document
    from ..runtime.library_file import read_metadata

    if path.is_dir():
        longest = read_document(path)["info"].get("max_sequence_length")
        return min(_SEQ_LEN, longest or _SEQ_LEN)
    return min(_SEQ_LEN, read_metadata(path).max_seq_len)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is printed: NumPy's numbers are plain ones there."""
    plain: dict[str, Any] = json.loads(json.dumps(document, default=lambda value: value.tolist()))
    return plain
