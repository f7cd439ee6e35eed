"""Which engine runs a library, and whether this machine can."""

from __future__ import annotations

from ..common.errors import TargetError, UsageError
from .device import Device
from .engine import Engine
from .metadata import LibraryMetadata


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
        return _emulated(metadata)
    _check_machine(metadata)
    if device.kind == "cuda":
        _check_unthreaded(metadata, num_threads)
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
    from ibert_tvm.targets.host import cpu_features

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
            + "or compile with --target host",
        )
    present = cpu_features()
    missing = [name for name in metadata.required_cpu_features if name not in present]
    if missing:
        raise TargetError(
            f"the library {metadata.path} does not run on this processor",
            why=f"it was compiled for {target} and needs {', '.join(missing)}, which "
            "/proc/cpuinfo does not list",
            todo="compile with --target host on this machine; `ibert targets` lists the others",
        )
