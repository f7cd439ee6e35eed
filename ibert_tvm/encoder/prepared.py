"""A library of a model that is none yet: quantised, compiled, and kept for the next time.

What is kept lies under the user's cache folder (``$XDG_CACHE_HOME``, by default ``~/.cache``), in
`ibert_tvm`, under a name that follows from everything that it depends on. Nothing is ever taken
for something else, and removing the folder costs time only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ..common.errors import LibraryError, UsageError
from ..common.extras import require
from ..common.files import files_below, files_sha256, locked
from ..common.strict_json import JsonDict
from ..common.version import __version__
from ..frontend import load
from ..frontend.sources import is_source, resolved, source_of
from ..model.artefact import QuantizedModel
from ..model.tokenization import Tokenizer
from ..progress import progress
from ..runtime.library_file import read_metadata
from ..texts import data_file

# Where an encoder keeps what it made or copied.


def cache_folder() -> Path:
    """Folder of the libraries that were made, which is made if it is not there.

    Raises
    ------
    UsageError
        If others may write to it: a library is code.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification has relative paths be ignored.
    folder = (given if given.is_absolute() else Path.home() / ".cache") / "ibert_tvm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "there is no folder to keep compiled models in",
            where=str(folder),
            why=error.strerror or str(error),
            todo="let XDG_CACHE_HOME name a folder that you may write to, or compile the model "
            "with `ibert compile` and give the library",
        ) from error
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(
            "compiled models are not taken from a folder that others can write to",
            where=str(folder),
            why="a library is code, which whoever put it there could choose",
            todo=f"run chmod go-w {folder}, or let XDG_CACHE_HOME name another folder",
        )
    return folder


_logger = logging.getLogger(__name__)

_BATCHES = (1, 8, 32)
"""Batch sizes to compile for: one text, few, many. More cost time to compile, fewer time to run."""
_LONGEST = 512
"""Most tokens of a text unless more are asked for: buffers grow with them."""
_STEPS = {"importing": 1, "quantising": 1, "compiling": 4}
_APART = """
import json, os, sys
from pathlib import Path
from ibert_tvm.encoder.prepared import Options, prepared_library
os.nice(10)
prepared_library(Path(sys.argv[1]), Options(**json.loads(sys.argv[2])))
"""
_PACKAGES = ("ibert_tvm", "ibert_tvm.relay_passes", "ibert_tvm.schedules", "ibert_tvm.targets")


@dataclass(frozen=True)
class Options:
    """What a library is made with.

    Attributes
    ----------
    target
        What it is compiled for.
    head
        Of a model folder: the head; None for the one that its files ask for.
    max_seq_length
        Longest text in tokens; None for what the source says.
    first
        Quantise with little effort, until another library takes its place.
    """

    target: str = "host"
    head: str | None = None
    max_seq_length: int | None = None
    first: bool = False


def prepared_library(model: Path, options: Options) -> Path:
    """Return the library of a model, which is made if it was not made before.

    Two processes that want the same one make it once; who asks for another one does not wait.

    Parameters
    ----------
    model : pathlib.Path
        A model folder, an ONNX file or a NAME.ibert folder.
    options
        What to make.

    Returns
    -------
    pathlib.Path
        In `cache_folder`.

    Raises
    ------
    IbertError
        As `ibert_tvm.load`, `quantize`, `compile` and `CompiledModel.export` raise.
    """
    require("tvm", to="a model that is no library", otherwise=", or give a library")
    model = resolved(model)[1] if is_source(model) else model
    library = _place(model, options)
    if not _is_whole(library):
        with locked(library.with_suffix(".lock")):
            if not _is_whole(library):
                _make(model, options, library)
    return library


def is_prepared(model: Path, options: Options) -> bool:
    """Whether `prepared_library` has one already."""
    model = resolved(model)[1] if is_source(model) else model
    return _is_whole(_place(model, options))


def prepare_apart(
    model: Path, options: Options, ready: Callable[[Path], object]
) -> threading.Thread:
    """Have another process make a library; it goes on if this one ends, and yields to others.

    Parameters
    ----------
    model, options
        As `prepared_library` takes.
    ready
        Called with the library in a thread, once it is made. If that fails, the log says why.

    Returns
    -------
    threading.Thread
        What waits for that process.
    """
    command = [sys.executable, "-c", _APART, str(model), json.dumps(asdict(options))]

    def wait() -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True
        )
        if done.returncode == 0:
            ready(prepared_library(model, options))
        else:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"exit code {done.returncode}"
            _logger.warning("%s keeps its first library: %s", model, why)

    thread = threading.Thread(target=wait, name="ibert-refine", daemon=True)
    thread.start()
    return thread


def _place(model: Path, options: Options) -> Path:
    """Where the library of a model is kept."""
    key = json.dumps(_key(model, options), sort_keys=True)
    return cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"


def _is_whole(library: Path) -> bool:
    """Whether a library was made, and is not damaged since: then it is made again."""
    try:
        read_metadata(library)
    except LibraryError:
        return False
    return True


def _key(model: Path, options: Options) -> JsonDict:
    """Everything that a library depends on."""
    from ibert_tvm.targets import get_target

    return {
        "source": _content(model),
        "options": asdict(options),
        # A home folder may be shared by machines: "host" is not the same on all of them.
        "target": repr(get_target(options.target)),
        "batches": _BATCHES,
        "calibration": files_sha256([data_file("calibration.txt")]),
        "versions": {"ibert_tvm": __version__, "tvm": version("apache-tvm")},
        "product": _product(),
    }


def _product() -> str:
    """Hash of this project's own files: in a checkout they change without the version."""
    specs = filter(None, map(find_spec, _PACKAGES))
    places = [Path(p) for spec in specs for p in spec.submodule_search_locations or ()]
    sources = (_hashed(p, (f for f in p.rglob("*") if f.suffix != ".pyc")) for p in places)
    return hashlib.sha256("".join(sources).encode()).hexdigest()


def _content(model: Path) -> str:
    """Hash of a model's files, and of their names in it."""
    source = source_of(model)
    if source is None or source.files is None:
        return _hashed(model, files_below(model))
    return _hashed(model if model.is_dir() else model.parent, source.files(model))


def _hashed(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{files_sha256([path])}\0".encode())
    return digest.hexdigest()


def _make(model: Path, options: Options, library: Path) -> None:
    from ..compiler import compile as compile_model
    from ..quantization.post_training import quantize_by_default

    with progress(_STEPS) as line:
        if not is_source(model):
            _logger.warning("compiling %s for %s; this is done once", model, options.target)
            quantized = QuantizedModel.load(model)
        else:
            _logger.warning(
                "quantising %s with the texts that come with this package, and compiling it for "
                "%s; this takes a minute or more, once",
                model,
                options.target,
            )
            source = load(model, head=options.head)
            line.step("quantising")
            quantized = quantize_by_default(source, line.advance, options.first)
        line.step("compiling")
        length = _length(quantized, options.max_seq_length)
        compiled = compile_model(quantized, options.target, [(batch, length) for batch in _BATCHES])
        compiled.export(library)


def _length(quantized: QuantizedModel, asked: int | None) -> int:
    """Tokens that texts are cut off at: as asked, or as its tokenizer and positions allow."""
    if asked is not None:
        return asked
    said = Tokenizer(quantized.tokenizer).model_max_length if quantized.tokenizer else None
    limits = (_LONGEST, said, quantized.info.max_sequence_length)
    return min(limit for limit in limits if limit is not None)
