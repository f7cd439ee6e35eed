"""Operators of two operands: a table of rules by what both operands are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tvm import relax

from . import distance_vectors as distances
from . import elementwise, mixing, rules_attention, rules_pooling, rules_rows
from .builder import Builder
from .dispatch import Apply
from .distance_vectors import PairTerms
from .functions import BINARY
from .mismatch import Mismatch
from .mixing import Mixed
from .rules_pooling import MaskedHidden, TokenSum
from .rules_rows import RowFunction
from .scores import Probabilities, Scores
from .values import FromInputs, Given, Hidden, Pointwise, Scalable, Tokens, Value, Weight

_Left = TypeVar("_Left", bound=Value)
_Right = TypeVar("_Right", bound=Value)

_ADD, _SUBTRACT = "relax.add", "relax.subtract"
_MULTIPLY, _DIVIDE = "relax.multiply", "relax.divide"
_BOUNDS = ("relax.maximum", "relax.minimum")


@dataclass(frozen=True)
class BinaryRule:
    """What an operator makes of two interpretations.

    Parameters
    ----------
    left, right
        Classes of the operands.
    apply : callable
        ``apply(emitter, op, left, right)`` returns a value, None where it does not apply and later
        rules decide, or raises Mismatch: a rejection with its reason.
    ops
        Operators that it is for.
    commutes
        Whether operands of the opposite order are exchanged for it.
    """

    left: type[Value]
    right: type[Value]
    apply: Apply
    ops: tuple[str, ...]
    commutes: bool

    def fits(self, left: type[Value], right: type[Value]) -> bool:
        """Tell whether it is for operands of these classes, in this order."""
        return issubclass(left, self.left) and issubclass(right, self.right)


def _rule(
    left: type[_Left],
    right: type[_Right],
    apply: Callable[[Builder, str, _Left, _Right], Value | None],
    *ops: str,
    commutes: bool = False,
) -> BinaryRule:
    """A rule whose function takes operands of these classes; for all operators if none is named."""
    return BinaryRule(left, right, apply, ops or tuple(BINARY), commutes)


def _rejected(reason: str) -> Callable[[Builder, str, Value, Value], None]:
    def reject(_c: Builder, _op: str, _left: Value, _right: Value) -> None:
        raise Mismatch(reason)

    return reject


def _norm_turned(c: Builder, op: str, left: Value, right: Value) -> Value | None:
    """What is turned by position is a norm before: take it for its result."""
    settled = [
        a.hidden(c) if isinstance(a, RowFunction) and mixing.turns(b, a.base.view) else a
        for a, b in ((left, right), (right, left))
    ]
    return None if settled == [left, right] else interpret(c, op, *settled)


def _times(_c: Builder, op: str, value: Scalable, other: FromInputs) -> Value | None:
    """A value times a number; None if it is none."""
    number = other.number()
    return None if number is None else value.times(number, op)


def _over(_c: Builder, op: str, value: Scalable, other: FromInputs) -> Value | None:
    """A value divided by a number; None if it is none, or 0."""
    number = other.number()
    return value.over(number, op) if number else None


_RULES = (
    # What is multiplied by numbers before it is known what it is.
    _rule(Scalable, FromInputs, _times, _MULTIPLY, commutes=True),
    _rule(Scalable, FromInputs, _over, _DIVIDE),
    # Terms of scores by distance.
    _rule(Scores, PairTerms, distances.scores_plus_terms, _ADD, commutes=True),
    _rule(PairTerms, PairTerms, distances.joined_terms, _ADD),
    _rule(PairTerms, FromInputs, distances.terms_plus, _ADD, commutes=True),
    _rule(
        PairTerms,
        Value,
        _rejected("products with vectors for distances are only scaled and added to scores"),
        commutes=True,
    ),
    # Scores, and what becomes of probabilities and sums of tokens.
    _rule(Scores, Given, rules_attention.scores_plus, _ADD, commutes=True),
    _rule(Scores, Given, rules_attention.scores_minus, _SUBTRACT),
    _rule(
        Scores,
        Given,
        _rejected("attention scores are only scaled by a number, masked, and normalised"),
        commutes=True,
    ),
    _rule(TokenSum, FromInputs, rules_pooling.pooled, _DIVIDE),
    _rule(
        TokenSum,
        Value,
        _rejected("a sum over tokens is divided by something other than their number"),
        _DIVIDE,
    ),
    *(
        _rule(
            kind,
            Value,
            _rejected("attention probabilities or masked tensors are changed before their use"),
            commutes=True,
        )
        for kind in (Probabilities, TokenSum)
    ),
    # Channels of heads that are mixed by position.
    _rule(RowFunction, Value, _norm_turned, _MULTIPLY),
    _rule(Value, RowFunction, _norm_turned, _MULTIPLY),
    _rule(Mixed, Mixed, mixing.mixed_sum, _ADD, _SUBTRACT),
    _rule(Mixed, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    _rule(Hidden, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    _rule(Pointwise, Value, mixing.turned_by, _MULTIPLY, commutes=True),
    # Functions of the channels of a token.
    *(_rule(RowFunction, kind, rules_rows.rows_pair) for kind in (RowFunction, Tokens, Given)),
    *(_rule(kind, RowFunction, rules_rows.rows_pair) for kind in (Tokens, Given)),
    # Hidden tensors.
    _rule(Tokens, Tokens, elementwise.hidden_pair),
    _rule(Hidden, FromInputs, elementwise.scaled_rows, _MULTIPLY, commutes=True),
    _rule(Tokens, FromInputs, elementwise.limited, *_BOUNDS, commutes=True),
    _rule(Tokens, FromInputs, elementwise.with_number),
    _rule(FromInputs, Tokens, elementwise.with_number),
    _rule(Tokens, FromInputs, rules_pooling.filled_by_sum, _ADD, commutes=True),
    _rule(Tokens, Given, elementwise.added, _ADD, commutes=True),
    _rule(Tokens, Weight, elementwise.channel_scale, _MULTIPLY, commutes=True),
    _rule(Tokens, FromInputs, rules_pooling.weighted, _MULTIPLY, commutes=True),
)
"""For one pair of classes the first rule that applies decides."""

_UNSETTLED = (MaskedHidden, Mixed, RowFunction)
"""Taken for the hidden tensors that they are, one after the other, where no rule applies."""


def _matching(op: str, left: type[Value], right: type[Value]) -> Iterator[tuple[BinaryRule, int]]:
    """The rules for two classes, and the step through the operands that puts them in order."""
    for rule in _RULES:
        if op in rule.ops and rule.fits(left, right):
            yield rule, 1
        if op in rule.ops and rule.commutes and rule.fits(right, left):
            yield rule, -1


def interpret(c: Builder, op: str, left: Value, right: Value) -> Value:
    """Return what an elementwise operator makes of two operands.

    Raises
    ------
    Mismatch
        If no rule is for them, or one rejects them.
    """
    for rule, step in _matching(op, type(left), type(right)):
        made = rule.apply(c, op, *(left, right)[::step])
        if made is not None:
            return made
    for kind in _UNSETTLED:
        if isinstance(left, kind) or isinstance(right, kind):
            settled = (x.hidden(c) if isinstance(x, kind) else x for x in (left, right))
            return interpret(c, op, *settled)
    other = next((x for x in (left, right) if not isinstance(x, Tokens)), None)
    if other is None or not any(isinstance(x, Tokens) for x in (left, right)):
        raise Mismatch("none of its operands is a hidden tensor")
    raise Mismatch(f"a hidden tensor and {type(other).__name__.lower()} are its operands")


def binary(c: Builder, _call: relax.Call, op: str, left: Value, right: Value) -> Value:
    """Interpret an elementwise operator of two operands."""
    return interpret(c, op, _number_of(op, left), _number_of(op, right))


def _number_of(op: str, value: Value) -> Value:
    """Take an array of equal numbers, which some exporters write out, for that number."""
    if op == "relax.add" or not isinstance(value, Weight) or value.layer:
        return value
    array = value.array
    if array.size == 0 or not np.all(array == array.flat[0]):
        return value
    return FromInputs.of(array)
