"""Disassembled code, and what analyses ask about the instructions of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ibert_tvm.common.errors import TargetError


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    address, mnemonic, operands
        Without prefixes, and without the disassembler's comment.
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
    data
        What is said to be data in the code: number of bytes and value, by address.
    """

    name: str
    address: int
    instructions: list[Instruction] = field(default_factory=list)
    data: dict[int, tuple[int, int]] = field(default_factory=dict)


class Goes(Enum):
    """Where an instruction that is no ordinary one goes on."""

    NAMED = "to the address that it names"
    POINTER = "to the address that a register holds"
    MEMORY = "to an address that it loads"
    WORDS = "to one of the words behind it"
    RETURN = "to an address that it takes from the stack"
    STOP = "nowhere"
    REFUSED = "into the operating system, or where nobody knows"


@dataclass(frozen=True)
class Transfer:
    """What an instruction does besides going on to the next.

    Attributes
    ----------
    goes
        Where.
    register
        That holds the address.
    falls
        Whether the next instruction may be reached from it as well.
    calls
        Whether it comes back.
    switches
        Whether it changes between ARM and Thumb instructions.
    """

    goes: Goes
    register: str = ""
    falls: bool = True
    calls: bool = False
    switches: bool = False


LOADED = "loaded"
"""Source of a register: memory, or the address of an instruction that the code names."""

ADDRESS = "="
"""How a source begins that is an address, which has to be the start of an instruction."""


def _names_nothing(_one: Instruction, _thumb: bool) -> None:
    """No instruction names an address."""


@dataclass(frozen=True)
class FlowRules:
    """How control passes through the code of a machine.

    Attributes
    ----------
    transfer
        Of instructions that do not only go on to the next.
    sources
        Where an instruction takes the new value of a register from: registers, `LOADED`, `ADDRESS`
        and a number, or an empty tuple for a value that it computes; None if it leaves the register
        alone. What it calls registers is its own: it is asked about them at the instructions
        before.
    arguments
        Registers in which callers hand over pointers.
    preserved
        Registers that functions leave as they were.
    reference
        The address of a constant or of an instruction that an instruction names, None if none; the
        second argument is whether it is a Thumb instruction.
    link
        The register with the address to return to; empty where that is on the stack.
    ambiguous
        Expression for encodings of such instructions that not all processors read alike.
    before_return
        Expression for instructions that put the address for a return on the stack.
    constants
        Whether compilers put constants between instructions.
    """

    transfer: Callable[[Instruction], Transfer | None]
    sources: Callable[[Instruction, str], tuple[str, ...] | None]
    arguments: frozenset[str]
    preserved: frozenset[str]
    reference: Callable[[Instruction, bool], int | None] = _names_nothing
    link: str = ""
    ambiguous: bytes = rb"(?!)"
    before_return: str = r"(?!)"
    constants: bool = False

    def goes_on(self, one: Instruction | None) -> bool:
        """Whether the instruction behind one may be reached from it; not if there is none."""
        if one is None:
            return False
        transfer = self.transfer(one)
        return transfer is None or transfer.falls


@dataclass(frozen=True)
class StackRules:
    """How the stack analysis reads the code of a machine.

    Attributes
    ----------
    lowered
        Bytes by which the instruction of a number in a function lowers the stack pointer, 0 if it
        does not; a StackError if the amount is not in the code.
    flow
        Those of the machine.
    """

    lowered: Callable[[Function, int], int]
    flow: FlowRules


class StackError(TargetError):
    """A function whose stack has no bound."""

    def __init__(self, function: str, why: str) -> None:
        super().__init__(
            what="the stack use of the package cannot be bounded",
            where=f"function {function}",
            why=why,
            todo="this is a defect of the compiler: please report it",
        )
