"""What is built once for all tests: kept on disk by its content, shared by the test processes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ibert_tvm.model.artefact import QuantizedModel

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("ibert_tvm", "relay_passes", "schedules", "targets")
_VERSIONS = ("apache-tvm", "apache-tvm-ffi", "numpy", "torch", "transformers")


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
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)


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
def product_version() -> str:
    """Tell apart all states of the packages' sources, and of what they compute with."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            digest.update(f"{name}=={version(name)}".encode())
    return digest.hexdigest()


def quantised_once(build: Callable[..., QuantizedModel]) -> Callable[..., QuantizedModel]:
    """Decorate a function that quantises a model: one for equal arguments and sources.

    Parameters
    ----------
    build
        Depends on nothing but its arguments, which have a `repr`, its file and the product.
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
            source = Path(inspect.getfile(build)).read_text(encoding="utf-8")
            key = (build.__qualname__, source, arguments, product_version())
            with cached("model", *key) as (place, work):
                if work is not None:
                    build(*args, **kwargs).save(work / "model.ibert")
                models[arguments] = QuantizedModel.load((work or place) / "model.ibert")
        return models[arguments]

    return model
