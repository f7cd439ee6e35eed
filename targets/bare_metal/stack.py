"""How much stack a linked image takes at most: frames read off its code, along its call graph.

A bound, not a measurement. Every instruction that lowers the stack pointer is counted once for its
function, wherever it is: functions here lower it on entry, or once more on a path that needs room.
A function that lowers it by an amount that is not in the code, calls itself, or calls through a
pointer has no bound, and is refused; only the driver's pointers are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ibert_tvm.common.errors import TargetError

from .disassembly import Function, Instruction

_CALLS = re.compile(r"(bl|blx|b|b[a-z]{2}|cbn?z)(\.[nw])?")
_PUSHES = re.compile(r"(v?push|v?stmdb|stmfd)(\.[nw]|\.64|\.32)?")
_STORES = re.compile(r"(str[a-z]*)(\.[nw])?")
_LITERALS = re.compile(r"(ldr|movs?|movw|mvns?)(\.[nw])?")


@dataclass(frozen=True)
class StackUse:
    """Stack of one function with everything it calls.

    Attributes
    ----------
    total
        Bytes.
    path
        The functions of the longest way down, from the one that was asked for.
    """

    total: int
    path: tuple[str, ...]


class StackError(TargetError):
    """A function whose stack has no bound."""

    def __init__(self, function: str, why: str) -> None:
        super().__init__(
            what="the stack use of the package cannot be bounded",
            where=f"function {function}",
            why=why,
            todo="this is a defect of the compiler: please report it",
        )


def stack_use(
    functions: Iterable[Function],
    entries: Iterable[str],
    pointers: Mapping[str, Sequence[str]] | None = None,
) -> StackUse:
    """Bound the stack of the entries that take most.

    Parameters
    ----------
    functions
        Disassembled.
    entries
        Names of functions that are called from outside.
    pointers
        Functions that may call through a pointer, and what that may reach in the image.

    Returns
    -------
    StackUse

    Raises
    ------
    StackError
        If some function has no bound.
    """
    known = {function.address: function for function in functions}
    by_name = {function.name: function for function in known.values()}
    graph = _Graph(
        known,
        {
            name: [by_name[callee].address for callee in callees if callee in by_name]
            for name, callees in (pointers or {}).items()
        },
    )
    uses = [graph.below(by_name[name], ()) for name in entries if name in by_name]
    return max(uses, key=lambda use: use.total, default=StackUse(0, ()))


def frame_bytes(function: Function) -> int:
    """Bytes by which a function itself lowers the stack pointer.

    Raises
    ------
    StackError
        If the amount is not in the code.
    """
    total = 0
    for index, instruction in enumerate(function.instructions):
        total += _lowered(function, index, instruction)
    return total


class _Graph:
    def __init__(
        self, functions: Mapping[int, Function], pointers: Mapping[str, Sequence[int]]
    ) -> None:
        self.functions = functions
        self.pointers = pointers
        self.pointed = {address for reached in pointers.values() for address in reached}
        self.done: dict[tuple[int, bool], StackUse] = {}

    def below(self, function: Function, above: tuple[int, ...]) -> StackUse:
        # Below a function that is reached through a pointer, pointers are the user's hook, whose
        # stack is the user's.
        key = function.address, any(address in self.pointed for address in above)
        if key not in self.done:
            deepest = StackUse(0, ())
            path = (*above, function.address)
            called, pointed = self._called(function)
            if not any(address in self.pointed for address in path):
                called |= dict.fromkeys(pointed, True)
            for address, is_call in called.items():
                if address not in path:
                    use = self.below(self.functions[address], path)
                    deepest = max(deepest, use, key=lambda one: one.total)
                elif is_call:
                    raise StackError(self.functions[address].name, "it calls itself")
            self.done[key] = StackUse(
                frame_bytes(function) + deepest.total, (function.name, *deepest.path)
            )
        return self.done[key]

    def _called(self, function: Function) -> tuple[dict[int, bool], Sequence[int]]:
        """Where a function goes, and whether it comes back; and what its pointers may reach.

        A branch to a label of another function is no call, and may form a loop.
        """
        found: dict[int, bool] = {}
        pointed: Sequence[int] = ()
        for one in function.instructions:
            if not _CALLS.fullmatch(one.mnemonic):
                continue
            is_call = re.fullmatch(r"blx?(\.w)?", one.mnemonic) is not None
            target = one.target
            if target in self.functions and (is_call or target != function.address):
                assert target is not None  # None is no address of a function
                found[target] = found.get(target, False) or is_call
            elif one.mnemonic.startswith("blx") and target is None:
                if function.name not in self.pointers:
                    raise StackError(function.name, f"it calls through a pointer ({one.operands})")
                pointed = self.pointers[function.name]
        return found, pointed


def _lowered(function: Function, index: int, one: Instruction) -> int:
    """Bytes by which one instruction lowers the stack pointer; 0 if it does not."""
    name, operands = one.mnemonic, one.operands
    if _PUSHES.fullmatch(name) and ("push" in name or operands.startswith("sp!")):
        return _register_bytes(operands)
    if _STORES.fullmatch(name) and (amount := re.search(r"\[sp, #-(\d+)\]!", operands)):
        return int(amount[1])
    if re.fullmatch(r"(sub|subw|add)s?(\.[nw])?", name) and re.match(r"sp(,|$)", operands):
        return _arithmetic(function, index, one)
    if re.fullmatch(r"mov(\.[nw])?", name) and operands.startswith("sp, "):
        return _realigned(function, index, operands.split(", ")[1])
    return 0


def _arithmetic(function: Function, index: int, one: Instruction) -> int:
    """``sub sp, #n``, ``sub sp, sp, #n``, and the same with a register."""
    adds = one.mnemonic.startswith("add")
    last = one.operands.split(", ")[-1]
    if last.startswith("#"):
        amount = int(last[1:], 0)
    else:
        amount = _constant(function, index, last)
        if adds and amount >= 1 << 31:
            adds, amount = False, (1 << 32) - amount
    return 0 if adds else amount


def _constant(function: Function, index: int, register: str) -> int:
    """The constant that a register was last loaded with.

    Raises
    ------
    StackError
        If it was not loaded with one.
    """
    for one in reversed(function.instructions[:index]):
        if one.operands.split(",")[0] != register:
            continue
        if not _LITERALS.fullmatch(one.mnemonic):
            break
        if one.mnemonic.startswith("ldr") and one.target in function.words:
            return function.words[one.target]
        if one.mnemonic.startswith(("mov", "mvn")) and "#" in one.operands:
            value = int(one.operands.split("#")[1], 0)
            return ~value & 0xFFFFFFFF if one.mnemonic.startswith("mvn") else value
        break
    raise StackError(
        function.name, f"it lowers the stack pointer by {register}, which is not a constant"
    )


def _realigned(function: Function, index: int, register: str) -> int:
    """``mov sp, register``: the end of a frame, or its start rounded down to an alignment."""
    for one in reversed(function.instructions[max(0, index - 4) : index]):
        if one.operands.split(",")[0] != register:
            continue
        if one.mnemonic in ("bfc", "bfc.w"):
            return 1 << int(one.operands.split("#")[2])
        if one.mnemonic in ("lsls", "lsl", "lsl.w") and "#" in one.operands:
            return 1 << int(one.operands.split("#")[1])
        if one.mnemonic.startswith("sub") and "#" not in one.operands:
            raise StackError(function.name, f"it lowers the stack pointer by {one.operands}")
        break
    return 0


def _register_bytes(operands: str) -> int:
    """Bytes of a list of registers such as ``{r4, r5, lr}`` or ``{d8-d15}``."""
    inside = operands[operands.index("{") + 1 : operands.index("}")]
    total = 0
    for item in inside.split(", "):
        first, _, last = item.partition("-")
        count = int(last[1:]) - int(first[1:]) + 1 if last else 1
        total += count * (8 if first.startswith("d") else 4)
    return total
