"""What is built once for all tests: kept on disk by its content, shared by the test processes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests import closure
from tests.closure import ROOT, Sources, qualified

if TYPE_CHECKING:
    from ibert_tvm.compiler import CompiledModel
    from ibert_tvm.model.artefact import QuantizedModel

T = TypeVar("T")
_VERSIONS = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "scipy")
_VERSIONS += ("tokenizers", "torch", "transformers")


def cache_folder() -> Path:
    """Folder of what was built before; of this user only."""
    folder = Path(tempfile.gettempdir()) / f"ibert-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def forget_unused(days: float = 3) -> None:
    """Remove what was built by earlier versions and not used within so many days."""
    limit = time.time() - days * 86400
    for folder in cache_folder().iterdir():
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.stat().st_mtime < limit:
                folder.unlink()


@contextlib.contextmanager
def cached(name: str, *key: str) -> Iterator[tuple[Path, Path | None]]:
    """Build something once, whatever number of processes ask for it at the same time.

    Parameters
    ----------
    name
        What it is.
    *key
        All that it depends on.

    Yields
    ------
    path, work
        Where it is, and a folder to build it in; None if it is there. The folder takes its place
        when the body is done.
    """
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:24]
    folder = cache_folder() / f"{name}-{digest}"
    if not folder.is_dir():
        lock = folder.with_suffix(".lock")
        with lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # until another process has built it
            if not folder.is_dir():
                work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_folder()))
                try:
                    yield folder, work
                    with contextlib.suppress(OSError):  # there: built by one that had no lock
                        work.rename(folder)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                    lock.unlink(missing_ok=True)
                return
            lock.unlink(missing_ok=True)
    os.utime(folder)
    yield folder, None


@functools.cache
def sources() -> Sources:
    """The sources of this checkout."""
    key = hashlib.sha256(f"{ROOT} {sys.version}".encode())
    key.update(Path(closure.__file__).read_bytes())
    return Sources(index=cache_folder() / f"imports-{key.hexdigest()[:24]}.json")


@functools.cache
def version_of(*builders: str | Callable[..., object]) -> str:
    """Tell apart all states of what functions, classes or modules depend on.

    That is the modules they import, directly or not, the files beside these, and the libraries
    that compute.
    """
    parts = [sources().version(*map(qualified, builders), without=(__name__, closure.__name__))]
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{name}=={version(name)}")
    return "\0".join(parts)


def remembered(compute: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function of texts and numbers, to keep on disk what it returns.

    Parameters
    ----------
    compute
        Depends on nothing but its arguments, which have a `repr`, and what it imports.
    """

    @functools.wraps(compute)
    @functools.cache
    def result(*arguments: Any) -> T:
        name = f"{compute.__module__}.{compute.__qualname__}"
        key = (name, repr(arguments), version_of(compute.__module__))
        with cached(compute.__name__, *key) as (place, work):
            if work is not None:
                (work / "result").write_bytes(pickle.dumps(compute(*arguments)))
            found: T = pickle.loads(((work or place) / "result").read_bytes())
        return found

    return result


def quantised_once(build: Callable[..., QuantizedModel]) -> Callable[..., QuantizedModel]:
    """Decorate a function that quantises a model: one for equal arguments and sources.

    Parameters
    ----------
    build
        Depends on nothing but its arguments, which have a `repr`, and what it imports.
    """
    signature = inspect.signature(build)
    models: dict[str, QuantizedModel] = {}

    @functools.wraps(build)
    def model(*args: object, **kwargs: object) -> QuantizedModel:
        from ibert_tvm.model.artefact import QuantizedModel

        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = repr(bound.arguments)
        if arguments not in models:
            key = (build.__qualname__, arguments, version_of(build, QuantizedModel.__module__))
            with cached("model", *key) as (place, work):
                if work is not None:
                    build(*args, **kwargs).save(work / "model.ibert")
                models[arguments] = QuantizedModel.load((work or place) / "model.ibert")
        return models[arguments]

    return model


def model_key(model: QuantizedModel) -> str:
    """Digests of all files that a model is saved as."""
    with tempfile.TemporaryDirectory(prefix="ibert-key-") as folder:
        return (model.save(Path(folder) / "m.ibert") / "manifest.json").read_text(encoding="utf-8")


@functools.cache
def _tool_version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    return done.stdout


def compiled_once(
    model: QuantizedModel, target: str, shapes: Sequence[tuple[int, int]], **options: Any
) -> Path:
    """Compile a model: one library or package for equal models, options, sources and tools.

    Parameters
    ----------
    model, target, shapes, **options
        Of `ibert_tvm.compile`.

    Returns
    -------
    pathlib.Path
        What was written, to be read only. A library for another processor was loaded under its
        emulator.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If it cannot be compiled, or not be loaded.
    """
    import ibert_tvm
    from ibert_tvm.targets import get_target

    with cached("compiled", *_compiled_key(model, target, shapes, options)) as (place, work):
        if work is not None:
            compiled = ibert_tvm.compile(model, target=target, shapes=shapes, **options)
            on_linux = get_target(target).system == "linux"
            compiled.export(work / "model.so", require_load=on_linux)
    return place / "model.so"


def compiled_in_memory_once(
    model: QuantizedModel, target: str, shapes: Sequence[tuple[int, int]], **options: Any
) -> CompiledModel:
    """What `compiled_once` exports, without runtime; it does not know the arena of other shapes."""
    import ibert_tvm

    options = {**options, "runtime": "none"}
    with cached("in-memory", *_compiled_key(model, target, shapes, options)) as (place, work):
        if work is not None:
            compiled = ibert_tvm.compile(model, target=target, shapes=shapes, **options)
            assert compiled.bare is not None
            content = replace(compiled, bare=replace(compiled.bare, arena_at=None))
            (work / "model.pickle").write_bytes(pickle.dumps(content))
        content = pickle.loads(((work or place) / "model.pickle").read_bytes())
    return content


def _compiled_key(
    model: QuantizedModel, target: str, shapes: Sequence[tuple[int, int]], options: dict[str, Any]
) -> list[str]:
    import ibert_tvm
    from ibert_tvm.targets import get_target
    from ibert_tvm.targets.toolchain import find_linker

    description = get_target(target)
    key = [model_key(model), str(description), repr([*shapes]), repr(sorted(options.items()))]
    return [*key, _tool_version(tuple(find_linker(description))), version_of(ibert_tvm.compile)]
