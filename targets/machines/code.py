"""Disassembled code, and what the stack analysis asks about the instructions of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ibert_tvm.common.errors import TargetError


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    address, mnemonic, operands
        The operands without the disassembler's comment.
    target
        The address that a comment or a branch names, if any.
    text
        What the disassembler wrote.
    """

    address: int
    mnemonic: str
    operands: str
    target: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Function:
    """A function, and the data between its instructions.

    Attributes
    ----------
    name, address
        Its symbol.
    instructions
        In order of address.
    words
        32-bit constants in the code, by address.
    """

    name: str
    address: int
    instructions: list[Instruction] = field(default_factory=list)
    words: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StackRules:
    """How the stack analysis reads the code of a machine.

    Attributes
    ----------
    lowered
        Bytes by which the instruction of a number in a function lowers the stack pointer, 0 if it
        does not; a StackError if the amount is not in the code.
    transfer
        ``"call"``, ``"branch"``, ``"pointer"`` for a call of what a register holds, or ``""``.
    """

    lowered: Callable[[Function, int], int]
    transfer: Callable[[Instruction], str]


class StackError(TargetError):
    """A function whose stack has no bound."""

    def __init__(self, function: str, why: str) -> None:
        super().__init__(
            what="the stack use of the package cannot be bounded",
            where=f"function {function}",
            why=why,
            todo="this is a defect of the compiler: please report it",
        )
