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
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..common.errors import IbertError, LibraryError, TargetError, UsageError
from ..common.strict_json import JsonDict
from .options import AtLeastOne, Board, ImportOptions, MaybeOne, TextsOption, parse_sizes

if TYPE_CHECKING:
    from ..frontend.model import CanonicalModel

    Load = Callable[[str], CanonicalModel]

_logger = logging.getLogger(__name__)

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
        What `ibert verify` wrote; by default PATH.verify.json.
    """

    path: Annotated[Path, Argument()]
    model: Path | None = None
    against: Path | None = None
    text: TextsOption = None
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
            "--texts was given without --against",
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
    from ibert_tvm.targets.bare_metal import read_package

    from ..model.artefact import read_document

    assert job.model is not None
    said = read_package(job.path) if job.kind == "microcontroller package" else _metadata(job.path)
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


def _metadata(path: Path) -> JsonDict:
    """What `ibert inspect` says, without the scales per channel, which are megabytes."""
    from . import inspect

    document = inspect.document_of(path)
    return {name: value for name, value in document.items() if name != _SCALES}


def collect(jobs: Sequence[Job], source: ImportOptions) -> list[JsonDict]:
    """Gather the documents of artefacts that are compared with one float model.

    Parameters
    ----------
    jobs
        Checked; `against` is the same in each.
    source
        How that is imported.

    Returns
    -------
    list of dict
        JSON-able: each document, or None and the reason under ``missing``.
    """
    against = jobs[0].against

    @functools.cache
    def load(head: str) -> CanonicalModel:
        assert against is not None
        return source.load(against, head)

    return [_collect(job, load) for job in jobs]


class _Missing(IbertError):
    """A document that there is not, and why."""


def _collect(job: Job, load: Load) -> JsonDict:
    from ibert_tvm.targets.bare_metal import read_package

    package = job.kind == "microcontroller package"
    document: JsonDict = {
        "name": job.path.name,
        "path": str(job.path),
        "kind": job.kind,
        "sha256": _digest(job),
        "package": read_package(job.path) if package else None,
        "inspect": None if package else _metadata(job.path),
        "model": None if job.model is None else _metadata(job.model),
    }
    missing: dict[str, str] = {}
    for name, title, make in (
        ("graph", "graph", _graph),
        ("eval", "fidelity", _fidelity),
        ("layers", "fidelity of layers", _layers),
        ("why", "worst texts", _diagnosis),
        ("bench", "speed", _speed),
        ("certificate", "certificate", _certificate),
    ):
        document[name] = None
        try:
            document[name] = make(job, load)
        except _Missing as reason:
            missing[title] = str(reason)
        except TargetError as error:  # this machine cannot run the library
            missing[title] = ": ".join(filter(None, (error.what, error.why)))
            _logger.warning("%s: no %s: %s", job.path.name, title, missing[title])
    return {**document, "missing": missing}


def _digest(job: Job) -> str:
    """As certificates state it: of the file, or of the folder's manifest."""
    from ..common.files import files_sha256
    from ..common.integrity import MANIFEST

    return files_sha256([job.path / MANIFEST if job.path.is_dir() else job.path])


def _graph(job: Job, load: Load) -> JsonDict:
    """Of the integer program."""
    from ..model.artefact import QuantizedModel
    from ..progress import progress
    from ..report import program_graph

    if job.folder is None:
        raise _Missing("--model NAME.ibert was not given")
    with progress("proving ranges"):
        return program_graph(QuantizedModel.load(job.folder))


def _fidelity(job: Job, load: Load) -> JsonDict:
    """Of the artefact itself; of a model that NumPy evaluates it says that of the layers, too."""
    if job.against is None:
        raise _Missing("--against MODEL was not given")
    if job.kind == "microcontroller package":
        raise _Missing("a package runs on a board; see that of its model")
    most = job.layer_texts if job.kind == "quantised model" else None
    return _evaluated(job, load, job.path, most)


def _layers(job: Job, load: Load) -> JsonDict | None:
    """Fidelity of the quantised model, with every value of it."""
    if job.against is None or job.kind == "quantised model":
        return None  # said already
    if job.folder is None:
        raise _Missing("--model NAME.ibert was not given")
    return _evaluated(job, load, job.folder, job.layer_texts)


def _diagnosis(job: Job, load: Load) -> JsonDict | None:
    """Where the quantised model loses quality."""
    from .why import TEXTS

    if job.against is None or job.folder is None or not job.why:
        return None
    # Without a limit the command takes so many from everywhere in the file.
    return _evaluated(job, load, job.folder, None if job.limit is None else TEXTS, why=True)


def _evaluated(job: Job, load: Load, path: Path, most: int | None, why: bool = False) -> JsonDict:
    from .eval import compare

    assert job.against is not None
    limit = min((count for count in (most, job.limit) if count is not None), default=None)
    length = job.seq_len or str(_length(path))
    return _plain(compare(path, job.against, load, job.text, length, limit, why).document)


def _speed(job: Job, load: Load) -> JsonDict:
    """Of a library, on this machine."""
    from ..runtime.library_file import read_metadata
    from . import bench

    if job.kind != "compiled library":
        raise _Missing(f"this is a {job.kind}; libraries are measured")
    if not job.bench:
        raise _Missing("--no-bench was given")
    metadata = read_metadata(job.path)
    threaded = metadata.threads
    result = bench.command(
        job.path,
        threads=job.threads if threaded else None,
        seconds=job.seconds,
        per_layer=True,
        board=Board(),
    )
    return _plain(result.document)


def _certificate(job: Job, load: Load) -> JsonDict:
    """What `ibert verify` wrote of this very artefact."""
    from ..verification.certificate import certificate_place, read_certificate

    file = job.certificate or certificate_place(job.path)
    if job.certificate is None and not file.is_file():
        raise _Missing(f"there is no {file.name} beside it")
    try:
        document = read_certificate(file)
    except LibraryError as error:
        if job.certificate is not None:
            raise
        raise _Missing(f"{error.what}: {error.why}") from error
    if document["artefact_sha256"] == _digest(job):
        return document
    why = f"{file} is that of another artefact, or of another state of this one"
    if job.certificate is None:
        raise _Missing(why)
    raise UsageError(
        "bad value for --certificate",
        where=str(job.path),
        why=why,
        todo="verify this artefact again, with `ibert verify`",
    )


def _length(path: Path) -> int:
    """Tokens that texts are truncated to where nobody says."""
    from ..model.artefact import read_info
    from ..runtime.library_file import read_metadata

    if path.is_dir():
        return min(_SEQ_LEN, read_info(path).max_sequence_length or _SEQ_LEN)
    return min(_SEQ_LEN, read_metadata(path).max_seq_len)


def _plain(document: JsonDict) -> JsonDict:
    """A document as it is printed: NumPy's numbers are plain ones there."""
    return json.loads(json.dumps(document, default=lambda value: value.tolist()))
