"""A PC with AVX-512 VNNI on any machine: what x86-avx512-vnni computes, under an emulator.

Bochs emulates a whole PC, instruction by instruction, Ice Lake's AVX-512 among them, which QEMU
does not. An operating system would take minutes to start in it. So the PC has no BIOS, no disk and
no system: a ROM of ours (boot.s) switches 64-bit code and AVX-512 on and enters a small program
(machine.c) that calls the library, which lies in memory from the start. A call of a small model
takes a second. The emulator's clock counts instructions, so that their number comes out too.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.arm.tools import call_of
from tests.cache import cached
from tests.processes import PATIENCE, run_captured

from .image import BASE, MEMORY, make_image

EMULATOR = "bochs-bin"
ICE_LAKE = "corei7_icelake_u"
SKYLAKE = "corei7_skylake_x"
"""AVX-512 without VNNI."""
_HERE = Path(__file__).parent
_SECONDS = 6 * PATIENCE
_HEAD = struct.Struct("<iQ")
_NO_ROOM, _FAULT = -1, -1000
_EXCEPTIONS = {
    0: "a division by zero",
    6: "an illegal instruction",
    13: "a general protection fault",
    14: "a page fault",
}
# Blocks of memory that lie where a PC has video memory and ROM hold nothing.
_VIDEO = 0xA0000
# No device that a test has use for, but the printer. Its debugger waits for a command: go on.
_CONFIGURATION = """\
cpu: model={processor}, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest={megabytes}, host={megabytes}
romimage: file={rom}
optramimage1: file={folder}/image.bin, address=0x0
parport1: enabled=1, file={folder}/printed.bin
pci: enabled=0
sound: driver=dummy
display_library: term
log: {folder}/log.txt
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
"""


class MachineError(Exception):
    """The emulated PC did not come to an end, or the library failed on it."""


@dataclass(frozen=True)
class Call:
    """One call of a library.

    Attributes
    ----------
    outputs
        Content of each output.
    instructions
        Instructions of the call.
    """

    outputs: tuple[bytes, ...]
    instructions: int


def call_library(
    library: Path,
    prefix: str,
    shape: tuple[int, int],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[int],
    processor: str = ICE_LAKE,
    printed: bool = True,
) -> Call:
    """Call a library of plain C functions for x86-64 once.

    Parameters
    ----------
    library, prefix, shape, inputs, outputs
        As `tests.pc.image.make_image` takes them.
    processor
        What Bochs calls the processor to emulate.
    printed
        Whether outputs come out; otherwise the instructions alone.

    Raises
    ------
    MachineError
        If it fails, or is ended by an exception, as by an instruction that the processor lacks.
    ValueError
        As `tests.pc.image.make_image`.
    """
    rom, program = _built()
    image = make_image(program, library, prefix, shape, inputs, outputs, printed)
    with tempfile.TemporaryDirectory(prefix="ibert-pc-") as name:
        folder = Path(name)
        (folder / "image.bin").write_bytes(bytes(_VIDEO) + image)
        (folder / "commands").write_text("c\n")
        (folder / "configuration").write_text(
            _CONFIGURATION.format(
                processor=processor, megabytes=MEMORY >> 20, rom=rom, folder=folder
            )
        )
        command = [EMULATOR, "-q", "-f", "configuration", "-rc", "commands"]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "TERM": "vt100"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_SECONDS,
            )
        except FileNotFoundError as error:
            todo = "apt-get install bochs bochs-term"
            raise MachineError(f"{EMULATOR} is not installed (Debian: {todo})") from error
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{library}: no end within {_SECONDS} s") from error
        paper = folder / "printed.bin"
        content = paper.read_bytes() if paper.exists() else b""
    if len(content) < _HEAD.size:
        words = done.stderr.decode(errors="replace").strip()[-1000:]
        raise MachineError(f"{library}: the emulated PC printed nothing: {words}")
    status, instructions = _HEAD.unpack_from(content)
    if status <= _FAULT:
        number = _FAULT - status
        raise MachineError(f"{library}: ended by {_EXCEPTIONS.get(number, f'exception {number}')}")
    if status == _NO_ROOM:
        raise MachineError(f"{library}: its arena does not fit the memory that is left")
    if status:
        raise MachineError(f"{library}: error {status} of the library's interface")
    ends = np.cumsum([_HEAD.size, *(outputs if printed else ())])
    if len(content) != ends[-1]:
        raise MachineError(f"{library}: {len(content)} bytes printed instead of {ends[-1]}")
    parts = tuple(content[a:b] for a, b in itertools.pairwise(ends))
    return Call(parts, instructions)


def run_library(
    path: Path, inputs: dict[str, np.ndarray], processor: str = ICE_LAKE
) -> dict[str, np.ndarray]:
    """Run a library without runtime at the shape of its inputs, as `tests.arm.tools.run_library`.

    Parameters
    ----------
    path
        What `ibert compile --runtime none` wrote, for an x86-64 target.
    inputs
        Arrays by name, [batch, seq_len], of any integer type; a shape that was compiled.
    processor
        As `call_library` takes it.

    Returns
    -------
    dict of str to numpy.ndarray
        Integer outputs by name.
    """
    metadata, shape, arrays, outputs = call_of(path, inputs)
    sizes = [int(np.prod(extents)) * np.dtype(dtype).itemsize for dtype, extents in outputs]
    call = call_library(path, metadata.prefix, shape, arrays, sizes, processor)
    return {
        record.name: np.frombuffer(content, dtype).reshape(extents)
        for record, content, (dtype, extents) in zip(
            metadata.outputs, call.outputs, outputs, strict=True
        )
    }


@functools.cache
def _built() -> tuple[Path, Path]:
    """The ROM and the program, assembled and linked once."""
    sources = [(_HERE / name).read_text(encoding="utf-8") for name in ("boot.s", "machine.c")]
    with cached("pc", *sources, Path(__file__).read_text(encoding="utf-8")) as (folder, work):
        if work is not None:
            for name, source in zip(("boot.s", "machine.c"), sources, strict=True):
                (work / name).write_text(source, encoding="utf-8")
            _tool(work, "as --64 boot.s -o boot.o")
            _tool(work, "ld -m elf_x86_64 --oformat binary -Ttext 0 -e 0 boot.o -o rom.bin")
            # No vector registers: they are the library's.
            flags = "-O1 -ffreestanding -fno-pic -fno-stack-protector -mno-red-zone"
            _tool(work, f"gcc {flags} -mgeneral-regs-only -Wall -Werror -c machine.c -o machine.o")
            places = f"--section-start=.entry={BASE:#x} -Ttext={BASE + 0x1000:#x}"
            _tool(work, f"ld -static -e enter {places} machine.o -o machine.elf")
    return folder / "rom.bin", folder / "machine.elf"


def _tool(work: Path, command: str) -> None:
    done = run_captured(command.split(), cwd=work)
    if done.returncode:
        raise MachineError(f"{command}: {done.stderr}")
