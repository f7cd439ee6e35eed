"""How operations on values become expressions: a strategy that every value carries.

An operation asks the arithmetic of its operands for another expression than the plain one. The
methods get `ibert_tvm.relay_passes.spec.ranged.Ranged` values and give one, or None, which leaves
the operation as it is; the intervals are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

from .binding import Scope, Traced


@dataclass
class Arithmetic:
    """The plain expressions, for machines with vectors.

    Attributes
    ----------
    keeps_short
        Whether short values are computed in int16.
    scope
        Takes the let-bindings of what is being traced with values of this arithmetic.
    """

    keeps_short: ClassVar[bool] = True
    scope: Scope | None = field(default=None, init=False, repr=False, compare=False)

    def fresh(self) -> Arithmetic:
        """The same arithmetic, for values that are traced apart from all others."""
        made = copy(self)
        made.scope = None
        return made

    @contextmanager
    def tracing(self) -> Iterator[Scope]:
        """Let values of this arithmetic have a scope of their own, within that of now."""
        outer, self.scope = self.scope, Scope()
        try:
            yield self.scope
        finally:
            self.scope = outer

    def add(self, x: Traced, number: int) -> Traced | None:
        """``x + number``."""

    def subtract(self, x: Traced, y: Traced) -> Traced | None:
        """``x - y``."""

    def subtract_from(self, number: int, x: Traced) -> Traced | None:
        """``number - x``."""

    def multiply(self, x: Traced, y: Traced) -> Traced | None:
        """``x * y``."""

    def shift_right(self, x: Traced, bits: int) -> Traced | None:
        """``x >> bits``."""

    def shift_right_by(self, x: Traced, amount: Traced) -> Traced | None:
        """``x >> amount`` of an amount that is computed."""

    def shift_left(self, x: Traced, bits: int) -> Traced | None:
        """``x << bits``."""

    def minimum(self, x: Traced, bound: int) -> Traced | None:
        """``min(x, bound)``."""

    def maximum(self, x: Traced, bound: int) -> Traced | None:
        """``max(x, bound)``."""

    def cut(self, x: Traced, least: int, most: int) -> Traced | None:
        """Minimum with some bound from `least` to `most`."""

    def absolute(self, x: Traced) -> Traced | None:
        """``|x|``."""

    def q15_product(self, x: Traced, y: Traced) -> Traced | None:
        """``(x y + 2^14) >> 15`` of values of 16 bits."""

    def function(self, name: str, x: Traced) -> Traced | None:
        """A function of one value that the target has by itself.

        ``square_root`` is ``floor(sqrt(x))`` of up to 62 bits that are not negative,
        ``floor_log2`` the floored logarithm of a positive value of 32 bits, and
        ``normalised_reciprocal`` ``floor(2^(15 + b) / x)``, b being that logarithm.
        """

    def bind(self, x: Traced, bind: Callable[[Traced], Traced]) -> Traced | None:
        """What to use in the place of `x`, some of it bound to a variable."""


VECTORS = Arithmetic()
ANY = Arithmetic()
"""Of what is the same in every arithmetic: constants, and intervals without an expression."""


def shared(*values: Traced) -> Arithmetic:
    """The arithmetic of values that are combined.

    Raises
    ------
    TypeError
        If they are of several: whoever traced one of them forgot to pass its arithmetic on.
    """
    found: Arithmetic = ANY
    for value in values:
        if found is ANY:
            found = value.arithmetic
        elif value.arithmetic is not ANY and value.arithmetic is not found:
            names = f"{type(found).__name__} and {type(value.arithmetic).__name__}"
            raise TypeError(f"values of two arithmetics are combined: {names}")
    return found
