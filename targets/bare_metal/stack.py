"""How much stack a linked image takes at most: frames read off its code, along its call graph.

A bound, not a measurement. Every instruction that lowers the stack pointer is counted once for its
function, wherever it is: functions here lower it on entry, or once more on a path that needs room.
A function that lowers it by an amount that is not in the code, calls itself, or calls through a
pointer has no bound, and is refused; only the driver's pointers are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..machines.code import Function, Goes, StackError, StackRules


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


def stack_use(
    functions: Iterable[Function],
    entries: Iterable[str],
    rules: StackRules,
    pointers: Mapping[str, Sequence[str]] | None = None,
    limits: Mapping[str, int] | None = None,
) -> StackUse:
    """Bound the stack of the entries that take most.

    Parameters
    ----------
    functions
        Disassembled.
    entries
        Names of functions that are called from outside.
    rules
        How the machine's code is read.
    pointers
        Functions that may call through a pointer, and what that may reach in the image.
    limits
        Frames to count for functions instead of those in the code.

    Raises
    ------
    StackError
        If some function has no bound.
    """
    known = {function.address: function for function in functions}
    by_name = {function.name: function for function in known.values()}
    graph = _Graph(
        known,
        rules,
        {
            name: [by_name[callee].address for callee in callees if callee in by_name]
            for name, callees in (pointers or {}).items()
        },
        limits or {},
    )
    uses = [graph.below(by_name[name], ()) for name in entries if name in by_name]
    return max(uses, key=lambda use: use.total, default=StackUse(0, ()))


def frame_bytes(function: Function, rules: StackRules) -> int:
    """Bytes by which a function itself lowers the stack pointer.

    Raises
    ------
    StackError
        If the amount is not in the code.
    """
    return sum(rules.lowered(function, index) for index in range(len(function.instructions)))


class _Graph:
    def __init__(
        self,
        functions: Mapping[int, Function],
        rules: StackRules,
        pointers: Mapping[str, Sequence[int]],
        limits: Mapping[str, int],
    ) -> None:
        self.functions, self.rules, self.limits = functions, rules, limits
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
            frame = frame_bytes(function, self.rules)
            self.done[key] = StackUse(
                max(frame, self.limits.get(function.name, 0)) + deepest.total,
                (function.name, *deepest.path),
            )
        return self.done[key]

    def _called(self, function: Function) -> tuple[dict[int, bool], Sequence[int]]:
        """Where a function goes, and whether it comes back; and what its pointers may reach.

        A branch to a label of another function is no call, and may form a loop.
        """
        found: dict[int, bool] = {}
        pointed: Sequence[int] = ()
        for one in function.instructions:
            transfer, target = self.rules.flow.transfer(one), one.target
            link = self.rules.flow.link
            if transfer is None or (link and transfer.register == link):
                continue
            if transfer.goes in (Goes.POINTER, Goes.MEMORY):
                if function.name not in self.pointers:
                    raise StackError(function.name, f"it calls through a pointer ({one.operands})")
                pointed = self.pointers[function.name]
            elif target in self.functions:
                assert target is not None  # None is no address of a function
                if transfer.calls or target != function.address:
                    found[target] = found.get(target, False) or transfer.calls
        return found, pointed
