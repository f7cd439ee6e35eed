"""Tables of rules by the classes of operands, and the one cache of the builder."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.canonicalise.builder import Builder
from ibert_tvm.frontend.canonicalise.dispatch import by_kind
from ibert_tvm.frontend.canonicalise.engine import RULES
from ibert_tvm.frontend.canonicalise.inputs import Probes
from ibert_tvm.frontend.canonicalise.mismatch import Mismatch
from ibert_tvm.frontend.canonicalise.values import FromInputs, Refusal, Several, Value, Weight

NUMBER = FromInputs.of(np.float32(2))
WEIGHT = Weight("w", np.ones(3, np.float32))


@pytest.fixture
def builder() -> Builder:
    return Builder(Probes(("input_ids",), 2, 13))


def second(_c: object, _call: object, _op: str, _one: Value, other: Value) -> Value:
    return other


def reason(rule, builder: Builder, *operands: Value) -> str:
    with pytest.raises(Mismatch) as error:
        rule(builder, None, "relax.op", *operands)
    return str(error.value)


def test_the_first_case_that_fits_decides(builder: Builder) -> None:
    rule = by_kind(
        ((Weight, FromInputs), second), ((Weight, Value), "weights alone"), otherwise="no weight"
    )
    assert rule(builder, None, "relax.op", WEIGHT, NUMBER) is NUMBER
    assert reason(rule, builder, WEIGHT, WEIGHT) == "weights alone"
    assert reason(rule, builder, NUMBER, WEIGHT) == "no weight"
    assert reason(rule, builder, WEIGHT) == "no weight"


def test_operands_are_exchanged_where_it_commutes(builder: Builder) -> None:
    rule = by_kind(((Weight, FromInputs), second), otherwise="no weight", commutes=True)
    assert rule(builder, None, "relax.op", NUMBER, WEIGHT) is NUMBER


def test_rules_are_for_operators_of_relax() -> None:
    assert all(name.startswith("relax.") for name in RULES) and len(RULES) > 50


def test_a_key_is_made_once_unless_that_fails(builder: Builder) -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        if len(made) == 1:
            raise Mismatch("not yet")
        return made[-1]

    with pytest.raises(Mismatch):
        builder.once("key", make)
    assert not builder.is_made("key")
    assert [builder.once("key", make), builder.once("key", make)] == [1, 1]
    assert builder.is_made("key") and made == [0, 1]


def test_names_and_weights_are_taken_once(builder: Builder) -> None:
    assert [builder.unique("x"), builder.unique("x")] == ["x", "x#2"]
    first = builder.weight("w", WEIGHT.array)
    assert builder.weight("w", WEIGHT.array.copy()).same_as(first)
    assert builder.weight("w", 2 * WEIGHT.array).name == "w#2"


def test_results_of_an_operator_are_taken_apart() -> None:
    both, refused = Several((NUMBER, WEIGHT)), Refusal("relax.op", "why")
    assert both.result(1) is WEIGHT and list(both.leaves()) == [NUMBER, WEIGHT]
    assert refused.result(1) is refused
