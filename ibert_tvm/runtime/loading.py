"""Loading a compiled library on this machine.

library = load_library("model.so")
outputs = library.run(input_ids=ids, attention_mask=mask)     # {name: float array}
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from ..common.errors import (
    IbertError,
    InputError,
    LibraryError,
    TargetError,
    UsageError,
    error_lines,
)
from ..common.file_seal import seal_digest
from ..model.model_info import REAL_INPUTS
from .device import Device, choose_device
from .engine import Engine
from .library import Library
from .library_file import read_metadata
from .metadata import LibraryMetadata
from .threads import default_threads

# Which engine runs a library, and whether this machine can.


def load_engine(
    metadata: LibraryMetadata, device: Device, num_threads: int | None, emulate: bool
) -> Engine:
    """Load the code of a library on this machine.

    Parameters
    ----------
    metadata
        The library.
    device
        Where its kernels shall run, as `choose_device` chose it.
    num_threads
        What the caller asked for; a library that cannot use threads refuses a number.
    emulate
        Whether to run it under the emulator of its target.

    Raises
    ------
    Exception
        Of whatever kind, if the code cannot be loaded: TVM's errors share no base class.
    TargetError
        If it was compiled for another machine, or cannot be emulated.
    DeviceError
        If it was compiled for a GPU, and there is none here that can run it.
    UsageError
        If it cannot use as many threads.
    """
    if emulate:
        _check_single(metadata, num_threads)
        return _emulated(metadata)
    _check_machine(metadata)
    if device.kind == "cuda":
        _check_unthreaded(metadata, num_threads)
        if metadata.runtime == "none":
            from .plain_gpu_engine import PlainGpuEngine

            return PlainGpuEngine(metadata, device.index)
        from .cuda_engine import CudaEngine

        return CudaEngine(metadata, device.index)
    if metadata.runtime == "none":
        _check_single(metadata, num_threads)
        from .plain_engine import PlainEngine

        return PlainEngine(metadata)
    from .tvm_engine import TvmEngine

    return TvmEngine(metadata)


def _check_single(metadata: LibraryMetadata, num_threads: int | None) -> None:
    """Refuse several threads for a library that starts none."""
    if num_threads not in (None, 1) and not metadata.threads:
        raise UsageError(
            f"the library {metadata.path} cannot use {num_threads} threads",
            why="it was compiled without threads: a call runs in the thread that makes it",
            todo="leave the number of threads out, or compile it again, for a 64-bit processor",
        )


def _check_unthreaded(metadata: LibraryMetadata, num_threads: int | None) -> None:
    """Refuse a number of threads for a library whose kernels run on a GPU."""
    if num_threads is not None:
        raise UsageError(
            f"a number of threads was given for the library {metadata.path}",
            why="its kernels run on a GPU, and a call waits for them in one thread",
            todo="leave the number of threads out",
        )


def _emulated(metadata: LibraryMetadata) -> Engine:
    """What calls a library under its target's emulator."""
    from .emulated_engine import EmulatedEngine

    if metadata.device != "cpu":
        raise TargetError(
            f"the library {metadata.path} cannot be run under an emulator",
            why="its kernels run on a GPU, which no emulator here stands for",
            todo="run it on a machine that has the GPU",
        )
    if metadata.runtime != "none":
        raise TargetError(
            f"the library {metadata.path} cannot be run under an emulator",
            why="it is one for TVM's runtime, of which there is only this machine's here",
            todo="compile it with --runtime none, or run it on a board (--rpc)",
        )
    return EmulatedEngine(metadata)


def _check_machine(metadata: LibraryMetadata) -> None:
    """Refuse a library whose instructions this machine lacks: it would end in SIGILL."""
    import platform

    from elftools.elf.elffile import ELFFile

    from ibert_tvm.targets.catalogue import CATALOGUE
    from ibert_tvm.targets.host import advised_target, cpu_features

    with metadata.path.open("rb") as stream:
        elf = ELFFile(stream)
        machine, known = elf["e_machine"], CATALOGUE.of_file(elf)
    target = metadata.target.get("name", "?")
    if not any(one.runs_on(platform.machine()) for one in known):
        raise TargetError(
            f"the library {metadata.path} does not run on this machine",
            why=f"it was compiled for {target} ({machine}); this machine is {platform.machine()}",
            todo="run it on such a machine, "
            + ("under an emulator (--emulate), " if metadata.runtime == "none" else "")
            + f"or compile with --target {advised_target()}",
        )
    present = cpu_features()
    missing = [name for name in metadata.required_cpu_features if name not in present]
    if missing:
        raise TargetError(
            f"the library {metadata.path} does not run on this processor",
            why=f"it was compiled for {target} and needs {', '.join(missing)}, which "
            "/proc/cpuinfo does not list",
            todo=f"compile with --target {advised_target()}; `ibert targets` lists the others",
        )


def load_library(
    path: str | os.PathLike[str],
    num_threads: int | None = None,
    emulate: bool = False,
    device: str | None = None,
) -> Library:
    """Load a compiled library.

    Parameters
    ----------
    path
        The library that `ibert compile` or `CompiledModel.export` wrote.
    num_threads
        Most threads per call; by default the processors that this process may use (or the
        environment variable TVM_NUM_THREADS). All libraries of a process share one pool of threads,
        and calls that run at the same time divide the processors. A library without threads uses
        one.
    emulate
        Run a library without runtime, of whatever Linux target, under the emulator of its target:
        to see what another machine will compute, not how fast.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. A library runs on one kind of device, and by default
        on the first of it.

    Raises
    ------
    LibraryError
        If the file is missing, damaged, or not made by this project.
    TargetError
        If it was compiled for another processor than this machine's.
    DeviceError
        If it was compiled for a GPU, and there is none here that can run it.
    UsageError
        If `num_threads` is not positive, or given for a GPU; or if the library's kernels do not run
        on that kind of device.
    """
    if num_threads is not None and num_threads < 1:
        raise UsageError(f"num_threads is {num_threads}", todo="give a number of at least 1")
    metadata = read_metadata(path)
    chosen = choose_device(metadata, device)
    try:
        engine = load_engine(metadata, chosen, num_threads, emulate)
        return Library(
            metadata, (num_threads or default_threads()) if metadata.threads else 1, engine
        )
    except IbertError:
        raise
    except Exception as error:  # TVM's errors share no base class below Exception
        raise LibraryError(
            f"cannot load the library {metadata.path}",
            why=error_lines(error)[-1],
            todo=f"it was made with TVM {metadata.versions.get('tvm', '?')}, this is "
            f"{_tvm_version()}; compile it again with `ibert compile`",
        ) from error


def _tvm_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return "not installed"


def run(
    path: str | os.PathLike[str],
    *,
    dequantize: bool = True,
    device: str | None = None,
    **inputs: ArrayLike | None,
) -> dict[str, Any]:
    """Load a library, or use it again if it was loaded before, and run it.

    Parameters
    ----------
    path
        The library.
    dequantize
        Give real values instead of integers with their scale.
    device
        As `load_library` takes.
    **inputs : array_like
        `input_ids`, and optionally `attention_mask` and `token_type_ids`, or `pixel_values`
        or `input_features`, as `Library.run` takes.

    Returns
    -------
    dict of str to numpy.ndarray or IntegerOutput
        Outputs by name.

    Raises
    ------
    InputError
        If the inputs do not fit the model.
    LibraryError, TargetError
        As `load_library` raises.
    """
    known = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)
    unknown = sorted(set(inputs) - set(known))
    if unknown or not {"input_ids", *REAL_INPUTS} & set(inputs):
        raise InputError(
            f"unknown input {', '.join(unknown)}" if unknown else "input_ids is missing",
            todo=f"the inputs are {', '.join(known)}; the first is required, or one of the last "
            "two for a model of images or features",
        )
    file = Path(path).expanduser().absolute()
    return _cached_library(file, _digest(file), device).run(**inputs, dequantize=dequantize)


def _digest(file: Path) -> str:
    """What a file's content is known by: one that is replaced is loaded again."""
    try:
        return seal_digest(file)
    except OSError:
        return ""  # loading says what is wrong


@functools.lru_cache(maxsize=4)
def _cached_library(file: Path, digest: str, device: str | None) -> Library:
    return load_library(file, device=device)
