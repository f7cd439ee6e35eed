"""Machine code of NVIDIA GPUs as ``nvdisasm -c -hex`` writes it, with the scheduling it encodes.

An instruction of 128 bits holds, above its operation, what the compiler decided for the scheduler
(Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", section 2.1, and
the same of Turing): how long the warp stalls, which of six barriers it sets when a result has come,
and which it waits for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from .errors import GpuBenchmarkError

__all__ = ["Instruction", "parse_sass"]

_KERNEL = re.compile(r"^\.text\.([\w.$]+):")
_LABEL = re.compile(r"^(\.L_x_\d+|\$[\w.$]+):")
_FIRST = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?)(U?P[0-9T]+)\s+)?([A-Z0-9_.]+)\s*([^;]*);"
    r"\s*/\* 0x([0-9a-f]{16}) \*/"
)
_SECOND = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\(([\w.$]+)\)")
_NO_BARRIER = 7


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    address : int
        Bytes from the start of the kernel.
    predicate : str
        ``"P0"``, ``"!P3"``, ``"UP0"``; empty where it is always executed.
    name : str
        With its modifiers, ``"IMAD.WIDE.U32"``.
    operands : tuple of str
        As written, destinations first.
    stall : int
        Cycles until the warp may issue its next instruction.
    sets : tuple of int
        Barriers that open when its results have come, or its operands have been read.
    waits : tuple of int
        Barriers that must be open before it.
    target : int
        Address that a branch leads to; -1 for other instructions.
    """

    address: int
    predicate: str
    name: str
    operands: tuple[str, ...]
    stall: int
    sets: tuple[int, ...]
    waits: tuple[int, ...]
    target: int = -1

    @cached_property
    def operation(self) -> str:
        """The name without modifiers."""
        return self.name.partition(".")[0]

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """The modifiers."""
        return frozenset(self.name.split(".")[1:])


def parse_sass(text: str) -> dict[str, list[Instruction]]:
    """Read all kernels of a disassembly.

    Parameters
    ----------
    text : str
        What ``nvdisasm -c -hex`` writes.

    Returns
    -------
    dict of str to list of Instruction
        By kernel.

    Raises
    ------
    GpuBenchmarkError
        If an instruction cannot be read.
    """
    kernels: dict[str, list[Instruction]] = {}
    raw: list[tuple[tuple[str, ...], str]] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    current = ""
    lines = iter(text.splitlines())
    for line in lines:
        if found := _KERNEL.match(line):
            _finish(kernels, current, raw, labels)
            current, raw, labels, pending = found[1], [], {}, []
        elif current and (found := _LABEL.match(line)):
            pending.append(found[1])
        elif current and (found := _FIRST.match(line)):
            second = _SECOND.match(next(lines, ""))
            if second is None:
                raise GpuBenchmarkError(
                    "a disassembly cannot be read",
                    where=f"kernel {current}, {line.strip()}",
                    why="the second half of the instruction does not follow",
                    todo="use the nvdisasm of CUDA 12 or 13 with -c -hex",
                )
            for label in pending:
                labels[label] = int(found[1], 16)
            pending = []
            raw.append((found.groups(), second[1]))
    _finish(kernels, current, raw, labels)
    return kernels


def _finish(
    kernels: dict[str, list[Instruction]],
    name: str,
    raw: list[tuple[tuple[str, ...], str]],
    labels: dict[str, int],
) -> None:
    if name:
        kernels[name] = [_instruction(groups, upper, labels) for groups, upper in raw]


def _instruction(groups: tuple[str, ...], upper: str, labels: dict[str, int]) -> Instruction:
    address, negated, predicate, name, operands, _ = groups
    control = int(upper, 16) >> 41
    write, read = control >> 5 & 7, control >> 8 & 7
    target = _TARGET.search(operands or "")
    return Instruction(
        address=int(address, 16),
        predicate=f"{negated or ''}{predicate}" if predicate else "",
        name=name,
        operands=tuple(part.strip() for part in operands.split(",") if part.strip()),
        stall=control & 15,
        sets=tuple(bar for bar in (write, read) if bar != _NO_BARRIER),
        waits=tuple(bar for bar in range(6) if control >> 11 >> bar & 1),
        target=labels.get(target[1], -1) if target else -1,
    )
