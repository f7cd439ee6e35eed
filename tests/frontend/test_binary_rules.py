"""The table of rules for operators of two operands."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.canonicalise import rules_math
from ibert_tvm.frontend.canonicalise.builder import Builder
from ibert_tvm.frontend.canonicalise.distance_vectors import PairTerms
from ibert_tvm.frontend.canonicalise.functions import BINARY
from ibert_tvm.frontend.canonicalise.inputs import Probes
from ibert_tvm.frontend.canonicalise.mismatch import Mismatch
from ibert_tvm.frontend.canonicalise.rules_pooling import TokenSum
from ibert_tvm.frontend.canonicalise.scores import Probabilities, Scores
from ibert_tvm.frontend.canonicalise.values import (
    Emitted,
    FromInputs,
    Given,
    Hidden,
    Pointwise,
    Tokens,
    Value,
    Weight,
)
from ibert_tvm.frontend.canonicalise.views import Atom

COMMUTATIVE = {"relax.add", "relax.multiply", "relax.maximum", "relax.minimum"}


@pytest.fixture
def builder() -> Builder:
    return Builder(Probes(("input_ids", "attention_mask"), 2, 13))


def number(value: float) -> FromInputs:
    return FromInputs.of(np.array(value, np.float32))


def hidden(builder: Builder) -> Hidden:
    x = Emitted("x", 8, (), builder.input_vars["input_ids"])
    return Hidden(x, ((builder.batch,), (builder.seq_len,), (Atom("channel", 8),)))


def test_only_rules_of_commutative_operators_exchange_operands():
    exchanging = [rule for rule in rules_math._RULES if rule.commutes]
    rejecting = [rule for rule in exchanging if rule.apply.__name__ == "reject"]
    assert {op for rule in exchanging if rule not in rejecting for op in rule.ops} <= COMMUTATIVE


def test_every_rule_is_for_known_operators():
    assert all(set(rule.ops) <= set(BINARY) for rule in rules_math._RULES)


@pytest.mark.parametrize("op", sorted(BINARY))
@pytest.mark.parametrize("kind", [PairTerms, Probabilities, TokenSum])
@pytest.mark.parametrize("other", [Hidden, Weight, Scores])
def test_what_has_no_other_use_is_decided_in_either_order(kind, other, op):
    assert list(rules_math._matching(op, kind, other))
    assert list(rules_math._matching(op, other, kind))


def test_a_product_with_a_number_is_the_same_function_in_both_orders(builder):
    x, two = hidden(builder), number(2.0)
    left = rules_math.interpret(builder, "relax.multiply", x, two)
    right = rules_math.interpret(builder, "relax.multiply", two, x)
    assert isinstance(left, Pointwise) and isinstance(right, Pointwise)
    np.testing.assert_array_equal(left.samples, right.samples)
    assert (left.text, right.text) == ("multiply(x, 2)", "multiply(2, x)")


def test_a_quotient_keeps_its_order(builder):
    x, two = hidden(builder), number(2.0)
    halves = rules_math.interpret(builder, "relax.divide", x, two)
    inverse = rules_math.interpret(builder, "relax.divide", two, x)
    assert isinstance(halves, Pointwise) and isinstance(inverse, Pointwise)
    assert halves.samples[-1] == 6.0
    assert inverse.samples[-1] == 2.0 / 12.0


@pytest.mark.parametrize(
    ("op", "kinds"),
    [
        ("relax.subtract", ("hidden", "weight")),
        ("relax.subtract", ("weight", "hidden")),
        ("relax.power", ("hidden", "weight")),
        ("relax.add", ("number", "number")),
    ],
    ids=str,
)
def test_a_pair_without_a_rule_is_rejected_with_its_classes(builder, op, kinds, messages):
    weight = Weight("w", np.arange(8, dtype=np.float32))
    values: dict[str, Value] = {"hidden": hidden(builder), "weight": weight, "number": number(1.0)}
    with messages.raises(Mismatch):
        rules_math.interpret(builder, op, *(values[kind] for kind in kinds))


def test_base_classes_say_what_a_rule_is_for():
    assert issubclass(FromInputs, Given) and issubclass(Weight, Given)
    assert issubclass(Hidden, Tokens) and issubclass(Pointwise, Tokens)
