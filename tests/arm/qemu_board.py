"""Firmware on an emulated microcontroller: build it, run it, read its outputs.

The start-up code, the linker scripts and semihosting are those of ``examples/firmware``. On the
Cortex-M4 the floating-point unit stays off, so that one floating-point instruction ends the run.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ibert_tvm.targets import TargetDescription, get_target
from ibert_tvm.targets.bare_metal.verification import bare_metal
from ibert_tvm.targets.toolchain import find_linker
from tests.cache import cached
from tests.processes import PATIENCE, run_captured

ROOT = Path(__file__).resolve().parents[2]
FIRMWARE = ROOT / "examples" / "firmware"
MEMORY = ROOT / "targets" / "bare_metal" / "memory.c"
HARNESS = Path(__file__).with_name("kernel_harness.c")

_FAULT_STATUS = 70
_CFLAGS = ("-O2", "-std=c11", "-ffreestanding", "-ffunction-sections", "-fdata-sections", "-Wall")


class BoardFault(AssertionError):
    """The processor faulted, or the firmware ended with another status than 0."""


@dataclass(frozen=True)
class FirmwareRun:
    """A run that ended with status 0."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class KernelRun:
    """One call of a kernel.

    Attributes
    ----------
    arrays
        All arguments after the call.
    status
        What the kernel returned.
    stack_bytes
        Most bytes of stack that were used since reset, start-up code and harness included.
    stdout, stderr
        What the firmware, and QEMU with its plugin, printed.
    """

    arrays: list[np.ndarray]
    status: int
    stack_bytes: int
    stdout: str
    stderr: str


def link_firmware(
    target: str | TargetDescription,
    sources: Sequence[Path],
    output: Path,
    *,
    objects: Sequence[Path] = (),
    flags: Sequence[str] = (),
    symbols: Mapping[str, int] | None = None,
    board: str = "",
    memory: bool = True,
) -> Path:
    """Compile C sources and link them with start-up code for the target's board.

    Parameters
    ----------
    target
        A target without operating system.
    sources
        C files besides those of ``examples/firmware``; one of them has ``main``.
    output
        ELF file to write.
    objects
        Object files and static libraries.
    flags
        For the compiler, ``-I`` and ``-D`` above all.
    symbols
        Absolute symbols: ``__stack_size``, ``__ram_size``, ``__code_size`` in bytes.
    board
        Another board than the target's: a linker script of ``examples/firmware/boards``.
    memory
        Whether to link memcpy and its like; a package has its own.

    Returns
    -------
    pathlib.Path
        `output`.
    """
    description = get_target(target) if isinstance(target, str) else target
    assert description.emulator is not None
    script = f"boards/{board or description.emulator.board}.ld"
    own = (FIRMWARE / name for name in bare_metal(description).start_up)
    common = [*own, *([MEMORY] if memory else [])]
    compiler = [*find_linker(description), *_CFLAGS]
    # Those of the example need nothing from the folders of a test.
    options = [*compiler, *(flag for flag in flags if not flag.startswith("-I"))]
    command = [
        *compiler,
        *flags,
        f"-I{FIRMWARE}",
        *(str(_object(source, tuple(options))) for source in common),
        *map(str, [*sources, *objects]),
        "-nostdlib",
        "-nostartfiles",
        f"-L{FIRMWARE}",
        f"-T{FIRMWARE / script}",
        "-Wl,--gc-sections",
        "-Wl,--enable-non-contiguous-regions",
        "-Wl,--no-warn-rwx-segments",
        "-Wl,-z,noexecstack",
        *(f"-Wl,--defsym={name}={value}" for name, value in (symbols or {}).items()),
        "-lgcc",
        "-o",
        str(output),
    ]
    done = run_captured(command)
    if done.returncode != 0:
        raise AssertionError(f"cannot link the firmware:\n{done.stderr[-4000:]}")
    return output


@functools.cache
def _object(source: Path, command: tuple[str, ...]) -> Path:
    """Compile a file that all firmware has, once for these options."""
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(FIRMWARE.glob("*.h")))]
    compiler = run_captured([command[0], "--version"], check=True)
    with cached("firmware", *texts, *command, compiler.stdout) as (place, work):
        if work is not None:
            output = ["-c", str(source), "-o", str(work / "object.o")]
            subprocess.run([*command, f"-I{FIRMWARE}", *output], check=True)
        return place / "object.o"


def run_firmware(
    target: str | TargetDescription,
    elf: Path,
    folder: Path,
    *,
    plugin: str | None = None,
    timeout: float = 4 * PATIENCE,
    board: str = "",
    arguments: Iterable[str] = (),
) -> FirmwareRun:
    """Run firmware under QEMU; files that it opens are those of `folder`.

    Parameters
    ----------
    plugin
        Argument of QEMU's ``-plugin``: a path, and options behind commas.
    timeout
        Seconds.
    board
        Another board than the target's, as QEMU calls it.
    arguments
        More arguments for QEMU.

    Raises
    ------
    BoardFault
        If the processor faults, or the firmware ends with another status than 0.
    """
    description = get_target(target) if isinstance(target, str) else target
    assert description.emulator is not None
    command = [
        *description.emulator.on_board(elf, board=board),
        *(["-plugin", plugin] if plugin else []),
        *arguments,
    ]
    done = run_captured(command, cwd=folder, stdin=subprocess.DEVNULL, timeout=timeout)
    if done.returncode != 0:
        kind = "fault" if done.returncode == _FAULT_STATUS else f"status {done.returncode}"
        raise BoardFault(f"{kind}: {done.stdout}{done.stderr}".strip())
    return FirmwareRun(done.stdout, done.stderr)


def run_kernel(
    target: str | TargetDescription,
    objects: Sequence[bytes | Path],
    symbol: str,
    arguments: Sequence[np.ndarray],
    *,
    plugin: str | Callable[[Path], str] | None = None,
    stack_bytes: int = 256 * 1024,
    timeout: float = 4 * PATIENCE,
    flags: Sequence[str] = (),
    keep: Path | None = None,
) -> KernelRun:
    """Call ``int32_t symbol(void *, ...)`` on the target's board.

    Parameters
    ----------
    target
        A target without operating system.
    objects
        Relocatable ELF files as bytes or paths, static libraries, and C files as paths.
    symbol
        The function.
    arguments
        Its arguments, all of them arrays (the workspace too); each is 64-byte aligned.
    plugin
        Argument of QEMU's ``-plugin``, or a function that is given the linked image and returns it.
        The call lies between the symbols ``ibert_region_begin`` and ``ibert_region_end``.
    stack_bytes
        Size of the stack.
    timeout
        Seconds.
    flags
        For the compiler of C files.
    keep
        Folder for the files of the run; by default one that is removed again.

    Returns
    -------
    KernelRun

    Raises
    ------
    BoardFault
        If the processor faults.
    """
    assert re.fullmatch(r"[A-Za-z_]\w*", symbol), symbol
    arrays = [np.ascontiguousarray(array) for array in arguments]
    with tempfile.TemporaryDirectory(prefix="ibert-board-") as scratch:
        folder = scratch_or(keep, scratch)
        entries = " ".join(f"x({n}, {array.nbytes})" for n, array in enumerate(arrays))
        header = f"#define KERNEL {symbol}\n#define ARGUMENTS(x) {entries}\n"
        (folder / "kernel_arguments.h").write_text(header)
        paths: list[Path] = []
        for number, item in enumerate(objects):
            if isinstance(item, bytes):
                paths.append(folder / f"object_{number}.o")
                paths[-1].write_bytes(item)
            else:
                paths.append(Path(item))
        elf = link_firmware(
            target,
            [HARNESS, *(path for path in paths if path.suffix == ".c")],
            folder / "kernel.elf",
            objects=[path for path in paths if path.suffix != ".c"],
            flags=[f"-I{folder}", *flags],
            symbols={"__stack_size": stack_bytes},
        )
        (folder / "inputs.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
        argument = plugin(elf) if callable(plugin) else plugin
        run = run_firmware(target, elf, folder, plugin=argument, timeout=timeout)
        data = (folder / "outputs.bin").read_bytes()
    status, stack = np.frombuffer(data[:8], "<i4")
    results = split_arrays(data[8:], [(array.shape, array.dtype) for array in arrays])
    return KernelRun(results, int(status), int(stack), run.stdout, run.stderr)


def scratch_or(keep: Path | None, scratch: str) -> Path:
    """The folder to keep files in, made if need be, or the temporary one."""
    if keep is None:
        return Path(scratch)
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


def split_arrays(data: bytes, kinds: Sequence[tuple[tuple[int, ...], Any]]) -> list[np.ndarray]:
    """Cut arrays of known shapes and dtypes out of what they were written to one after another."""
    arrays, offset = [], 0
    for shape, dtype in kinds:
        kind = np.dtype(dtype).newbyteorder("<")
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        arrays.append(np.frombuffer(data[offset : offset + size], kind).reshape(shape).copy())
        offset += size
    assert offset == len(data), f"{len(data)} bytes came back, expected {offset}"
    return arrays
