"""Records of operators: complete, read back as they were written, and sound over all domains."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.dialect.calls import call_operator, operands_of
from ibert_tvm.relay_passes.dialect.record import Operand
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer import OPERATORS, Operator
from ibert_tvm.relay_passes.integer.evaluate import evaluate, evaluate_all
from ibert_tvm.relay_passes.integer.operator import Elementwise, Serial, Traits
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.integer.operators.functions import Tanh
from ibert_tvm.relay_passes.integer.operators.requantise import Requantise
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import BinaryExponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.released import ReleasedExponential, ReleasedLayerNorm
from ibert_tvm.relay_passes.spec.score_cap import ScoreCap
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

SHORT = ShortExponential.from_scale(1e-3)
CAP = ScoreCap.from_scale(1e-3, 50.0)
STORED = {"shift": 7, "low": -99, "high": 99, "dtype": "int8"}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "add": [{}],
    "add_positions": [{}],
    "add_row": [{}],
    "add_short": [{"low": -16383, "high": 16383}],
    "attention": [
        {"num_heads": 2, "softmax": "short", "exponential": SHORT, **STORED, "zero_point": -3},
        {
            "num_heads": 2,
            "softmax": "normalised",
            "exponential": PolynomialExponential.from_scale(1e-6),
            **STORED,
            "before": 4,
            "after": 0,
        },
        {
            "num_heads": 2,
            "softmax": "normalised",
            "exponential": ReleasedExponential.from_scales(1e-3, 1e11),
            "shift": 0,
            "low": -32768,
            "high": 32768,
            "dtype": "int32",
        },
    ],
    "capped_attention": [
        {"num_heads": 2, "softmax": "short", "exponential": SHORT, **STORED, "cap": CAP}
    ],
    "channel_run": [{"first": 3, "channels": 5}],
    "attention_pool": [
        {"exponential": SHORT, **STORED, "zero_point": -3},
        {"exponential": PolynomialExponential.from_scale(1e-6), **STORED},
    ],
    "clip": [{"low": -9, "high": 700}],
    "concatenate": [{}],
    "distance_products": [{"num_heads": 2, "shift": 5}],
    "embedding": [{"shift": 7}],
    "gather_channels": [{}],
    "gelu": [{"constants": ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU)}],
    "gelu_paper": [{}],
    "join_parts": [{}],
    "last_token": [{}],
    "layer_norm": [{"constants": LayerNormConstants(2**20 - 1, 2**40, 40, 16, 3), **STORED}],
    "layer_norm_short": [{"constants": ShortLayerNorm(2**20, 9), **STORED}],
    "leaky_relu": [{"slope": 3277}],
    "linear": [{}],
    "log1p_relu": [{"constants": Logarithm.from_scale(1e-3, 2**14 - 1)}],
    "mask_tokens": [{}],
    "max_pool": [{}],
    "mean_pool": [{"fraction_bits": 6}],
    "multiply": [{}],
    "nibble_embedding": [{"shift": 7, "channels": 17}],
    "nibble_linear": [{}],
    "operand_part": [{"part": "low", "dtype": "int8", "zero_point": 5}],
    "pack_tokens": [{}],
    "patches": [{"patch_height": 3, "patch_width": 2}],
    "position_ids": [{"kind": "roberta", "offset": 0, "padding_index": 1}],
    "prepend_tokens": [{}],
    "released_layer_norm": [{"constants": ReleasedLayerNorm(4)}],
    "quantise_rows": [{"low": -127, "high": 127, "dtype": "int8", "zero_point": 3}],
    "relu": [{}],
    "requantise": [{**STORED, "zero_point": 5}],
    "requantise_even": [{"split": 3, "low": -128, "high": 127, "dtype": "int8", "zero_point": 5}],
    "requantise_short": [{**STORED, "zero_point": 5}],
    "rms_norm": [{"constants": LayerNormConstants(2**20 - 1, 2**40, 40, 16, 3), **STORED}],
    "rms_norm_short": [{"constants": ShortLayerNorm(2**20, 9), **STORED}],
    "rotate": [{"num_heads": 2, "raised": 7, **STORED, "zero_point": 3}],
    "row_magnitude": [{}],
    "scale_rows": [{"shift": 11}],
    "select_token": [{"index": 2}],
    "shift_tokens": [{"distance": -1}, {"distance": 2}],
    "sigmoid": [{"constants": ClippedPolynomial(32640, 0, 4700, 22200, -10350)}],
    "silu": [{"constants": ClippedPolynomial(16320, 1, 2700, 21000, -6100)}],
    "slice_tokens": [{"first": 1, "count": 3}],
    "slot_starts": [{}],
    "slot_tokens": [{}],
    "split_channels": [{"index": 1, "parts": 3}],
    "sqrt_mean_pool": [{"fraction_bits": 6}],
    "tanh": [{"exponential": BinaryExponential.for_tanh(1e-3), "fraction_bits": 7}],
    "token_slots": [{"selected": "0,3"}],
    "unfold_tokens": [{"width": 3, "stride": 1, "before": 1, "after": 1}],
    "weighted_mean_pool": [{"fraction_bits": 6}],
    "windows": [
        {
            **{"height": 2, "width": 3, "stride_down": 1, "stride_across": 2},
            **{"top": 1, "bottom": 0, "left": 1, "right": 2, "zero_point": 5},
        }
    ],
}
RECORDS = [
    OPERATORS[f"integer.{name}"]("value", **given)
    for name, cases in ATTRIBUTES.items()
    for given in cases
]


def refused(build: Callable[[], Any]) -> str:
    with pytest.raises(LoweringError) as caught:
        build()
    return str(caught.value)


# -- what there is of an operator ---------------------------------------------------------------


def test_each_operator_is_in_a_file_of_its_family_and_known_to_tvm() -> None:
    assert sorted(OPERATORS) == [f"integer.{name}" for name in sorted(ATTRIBUTES)]
    for name, record in OPERATORS.items():
        assert record.__module__.rpartition(".")[0] == integer.operators.__name__
        assert name == record.OP
        assert tvm.ir.Op.get(name).name == name
        assert getattr(integer, name.removeprefix("integer.")).__doc__ == record.__doc__


def test_there_is_no_builder_of_an_unknown_operator() -> None:
    text = "module 'ibert_tvm.relay_passes.integer' has no attribute 'softplus'"
    with pytest.raises(AttributeError, match=f"^{re.escape(text)}$"):
        integer.softplus  # noqa: B018


def variable(name: str, shape: tuple[int, ...], dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


X, MASK = variable("x", (2, 5, 8), "int32"), variable("mask", (2, 5), "int64")
SLOTS = variable("slots", (2, 5), "int32")


def test_a_call_names_the_optional_operands_that_it_has() -> None:
    whole = integer.mean_pool(X, MASK, SLOTS, name="m", fraction_bits=1)
    assert operands_of(whole) == {"x": X, "mask": MASK, "slots": SLOTS}
    by_name = integer.mean_pool(slots=SLOTS, x=X, name="m", fraction_bits=1)
    assert operands_of(by_name) == {"x": X, "slots": SLOTS}
    assert operands_of(integer.mean_pool(X, None, SLOTS, name="m")) == operands_of(by_name)


@pytest.mark.parametrize(
    ("operands", "said"), [([X, MASK], "x"), ([X], "x, mask"), ([X, MASK], "x, x")]
)
def test_a_call_with_other_operands_than_it_names_is_refused(operands, said: str, messages) -> None:
    attributes = {"name": "m", "fraction_bits": 1, "operands": said.replace(" ", "")}
    call = relax.Call(
        tvm.ir.Op.get("integer.mean_pool"), operands, tvm.ir.make_node("ir.DictAttrs", **attributes)
    )
    messages.check(refused(lambda: operands_of(call)))


def test_what_a_builder_does_not_take_is_refused(messages) -> None:
    for second in (X, 3):
        with messages.raises(TypeError):
            integer.relu(X, second, name="r")


# -- attributes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.OP)
def test_attributes_survive_json_unchanged(record: Operator) -> None:
    flat = record.to_dict()
    assert all(type(value) in (int, str) for value in flat.values()), "no float and no array"
    loaded = tvm.ir.load_json(tvm.ir.save_json(tvm.ir.make_node("ir.DictAttrs", **flat)))
    assert type(record).from_dict(loaded) == record
    assert type(record).from_dict({**flat, "operands": "x"}) == record, "more may be there"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.OP)
def test_an_attribute_that_is_missing_or_of_another_type_is_refused(record: Operator) -> None:
    flat = record.to_dict()
    for name, value in flat.items():
        wanted = "a string" if isinstance(value, str) else "an integer"
        wrong: list[Any] = [None, 1.5, True, 3 if isinstance(value, str) else "3"]
        for other in wrong:
            given = {**flat, name: other}
            if other is None:
                del given[name]
            where = given.get("name", record.OP)
            assert refused(lambda given=given: type(record).from_dict(given)) == (
                f"attribute {name} is {'missing' if other is None else repr(other)}\n"
                f"  where: {where}\n"
                f"  why: {record.OP} needs {wanted}\n"
                "  what to do: quantise the model again"
            )


def test_an_unknown_exponential_is_refused(messages) -> None:
    flat = {**Attention("s", 2, "short", SHORT, 6, -128, 127).to_dict(), "exponential": "taylor"}
    messages.check(refused(lambda: Attention.from_dict(flat)))


def test_what_is_read_is_checked_as_what_is_built() -> None:
    flat = {**Requantise("q", 3, -128, 127, "int8").to_dict(), "shift": 63}
    assert refused(lambda: Requantise.from_dict(flat)).startswith("shift 63 is outside [0, 62]\n")
    tanh = Tanh("t", BinaryExponential.for_tanh(1e-3))
    assert {"exp_" + part.name for part in fields(tanh.exponential)} < set(tanh.to_dict())


# -- types without TVM --------------------------------------------------------------------------


def test_types_of_results_need_no_tvm(messages) -> None:
    x = TensorType((2, 5, 8), "int32")
    requantise = Requantise("q", 3, -9, 9, "int16")
    assert requantise.result_type({"x": x, "multiplier": TensorType((1,), "int32")}) == TensorType(
        (2, 5, 8), "int16"
    )
    messages.check(refused(lambda: requantise.result_type({"x": x})))


def attention_type(bias: tuple[int, ...], heads: int = 2, length: int = 5) -> TensorType:
    hidden = TensorType((2, length, 8), "int8")
    operands = {
        **dict.fromkeys("qkv", hidden),
        "multiplier": TensorType((1,), "int16"),
        "bias": TensorType(bias, "int32"),
    }
    return Attention("s", heads, "short", SHORT, 6, -128, 127).result_type(operands)


def test_a_bias_serves_heads_and_positions(messages) -> None:
    for bias in ((2, 9), (1, 9), (2, 11), (2, 5, 5), (1, 6, 6)):
        assert attention_type(bias) == TensorType((2, 5, 8), "int8")
    for bias in ((2, 7), (3, 9), (2, 10), (2, 4, 4), (2, 5, 6)):
        messages.check(refused(lambda bias=bias: attention_type(bias)))


def test_a_query_sees_itself_at_least(messages) -> None:
    attention = Attention("s", 2, "short", SHORT, 6, -128, 127)
    for window in ({"before": -1}, {"after": -1}):
        messages.check(refused(lambda window=window: replace(attention, **window)))


# -- records that lack a part -------------------------------------------------------------------

PARTS: dict[str, Any] = {
    "__doc__": "An operator.",
    "OPERANDS": (Operand("x", ("int8",), "... C"),),
    "RESULT": "... C",
    "result_dtype": lambda self, types: "int8",
    "body": lambda self, domain, **operands: operands["x"],
    "__annotations__": {},
}


def define(base: type = Operator, **changes: Any) -> type:
    """Define a record, `Nothing` where no other name is given; None leaves a part out."""
    name = changes.pop("named", "Nothing")
    parts = {name: part for name, part in {**PARTS, **changes}.items() if part is not None}
    return type(name, (base,), {"__module__": __name__, "__qualname__": name, **parts})


ENTRY = {"body": None, "entry": lambda self, x: x, "STAGE": "nothing"}
SERIAL = {
    "body": None,
    "evaluate": lambda self, **operands: operands["x"],
    "script": lambda self, types: "",
}
INCOMPLETE: dict[str, tuple[type, dict[str, Any]]] = {
    "name of another dialect": (Operator, {"OP": "canonical.nothing"}),
    "name of another operator": (Operator, {"named": "Linear"}),
    "docstring": (Operator, {"__doc__": None}),
    "operands": (Operator, {"OPERANDS": None}),
    "shape": (Operator, {"RESULT": None}),
    "unknown dimension": (Operator, {"RESULT": "... N"}),
    "body": (Operator, {"body": None}),
    "entry": (Elementwise, {**ENTRY, "entry": None}),
    "stage": (Elementwise, {**ENTRY, "STAGE": None}),
    "evaluate": (Serial, {**SERIAL, "evaluate": None}),
    "script": (Serial, {**SERIAL, "script": None}),
    "type": (Operator, {"result_dtype": None}),
    "type of no operand": (Operator, {"result_dtype": None, "KEEPS": "weight"}),
    "views": (Operator, {"TRAITS": Traits(reads_views=("x", "weight", "bias"))}),
}


@pytest.fixture
def operators() -> Any:
    """The table of operators, which is left as it was."""
    before = dict(OPERATORS)
    yield OPERATORS
    OPERATORS.clear()
    OPERATORS.update(before)


@pytest.mark.parametrize("name", INCOMPLETE)
def test_an_incomplete_record_is_refused_where_it_is_defined(
    name: str, operators, messages
) -> None:
    base, changes = INCOMPLETE[name]
    before = dict(operators)
    with messages.raises(TypeError):
        define(base, **changes)
    assert operators == before


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (Operator, {}),
        (Operator, {"result_dtype": None, "__annotations__": {"dtype": str}}),
        (Operator, {"result_dtype": None, "KEEPS": "x"}),
        (Elementwise, ENTRY),
        (Serial, {**SERIAL, "result_dtype": None}),
    ],
)
def test_a_complete_record_is_known_once_it_is_defined(base, changes, operators) -> None:
    record = define(base, **changes)
    assert operators["integer.nothing"] is record


def test_a_new_record_is_all_that_an_operator_needs(operators, builder) -> None:
    class Double(Elementwise):
        """``2 x``."""

        OPERANDS = (Operand("x", ("int8", "int32"), "... C"),)
        RESULT = "... C"
        TRAITS = Traits(elementwise=True, per_token=True)
        STAGE = "doubled"

        def result_dtype(self, types: Mapping[str, TensorType]) -> str:
            return "int32"

        def entry(self, x: Any) -> Any:
            return x + x

    def body(b) -> relax.Var:
        table = b.values("table", 127, (30, 4), "int8")
        one = b.parameter("one", [1], "int32")
        x = b.emit(integer.embedding(b.ids, table, one, name="x", shift=0))
        return b.emit(call_operator(Double("twice"), {"x": x}))

    module = builder.module(body)
    ids = np.arange(6).reshape(2, 3)
    given = {"input_ids": ids, "attention_mask": ids}
    (got,) = evaluate(module, given, builder.parameters)
    table = builder.parameters["table"]
    np.testing.assert_array_equal(got, 2 * table[ids].astype(int))
    report = analyse_ranges(module, builder.parameters)
    assert report.values["twice"] == (2 * int(table.min()), 2 * int(table.max()))
    assert operands_of(integer.double(X, name="again")) == {"x": X}


# -- integers without bounds --------------------------------------------------------------------


def inputs(seed: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, 30, (2, length)),
        "attention_mask": random.integers(0, 2, (2, length)),
    }


@pytest.mark.parametrize(("seed", "length"), [(0, 1), (1, 22)])
def test_nothing_leaves_its_interval_in_unbounded_integers(encoder, seed: int, length: int) -> None:
    module, parameters = encoder
    report = analyse_ranges(module, parameters)
    given = inputs(seed, length)
    assert check_unbounded(module, given, parameters, report.details) == []
    assert check_unbounded(read_program(module), given, parameters, report.details) == []


def test_what_leaves_its_interval_is_found(encoder) -> None:
    module, parameters = encoder
    given = inputs(2, 7)
    proven = analyse_ranges(module, parameters).details
    (_, mean, _), _ = evaluate_all(module, given, parameters)
    low, high = int(mean.min()), int(mean.max())
    planted = {
        **proven,
        "mean": replace(proven["mean"], low=low + 1),
        "attention": replace(
            proven["attention"], stages={**proven["attention"].stages, "row_sum": (0, 3)}
        ),
    }
    found = check_unbounded(module, given, parameters, planted)
    assert [line.split(":")[0] for line in found] == ["attention, row_sum", "mean"]
    assert re.fullmatch(r"attention, row_sum: \[\d+, \d+\] leaves \[0, 3\]", found[0])
    assert found[1] == f"mean: [{low}, {high}] leaves [{low + 1}, {proven['mean'].high}]"


# -- programs -----------------------------------------------------------------------------------


def test_a_program_is_a_list_of_calls_by_name(encoder) -> None:
    module, parameters = encoder
    program = read_program(module)
    assert list(program.inputs) == ["input_ids", "attention_mask"]
    assert {name: type_.dtype for name, type_ in program.parameters.items()} == {
        name: str(array.dtype) for name, array in parameters.items()
    }
    steps = {step.name: step for step in program.steps}
    assert steps["attention"].operands == {
        "q": "q_8",
        "k": "k_8",
        "v": "v_8",
        "mask": "attention_mask",
        "multiplier": "context.multiplier",
    }
    assert str(steps["attention"].type) == "int8[batch, seq_len, 24]"
    assert program.outputs == ("output_norm", "mean", "tanh")
    given = inputs(3, 9)
    for one, other in zip(
        evaluate(program, given, parameters), evaluate(module, given, parameters), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_two_values_of_one_name_are_refused(builder, messages) -> None:
    module = builder.module(
        lambda b: (
            b.emit(integer.position_ids(b.ids, name="places")),
            b.emit(integer.position_ids(b.ids, name="places", offset=2)),
        )
    )
    messages.check(refused(lambda: read_program(module)))
    messages.check(refused(lambda: analyse_ranges(module, {})))


def test_a_value_of_the_name_of_an_input_is_refused(builder) -> None:
    module = builder.module(lambda b: b.emit(integer.position_ids(b.ids, name="input_ids")))
    assert refused(lambda: read_program(module)).startswith("two values are called 'input_ids'\n")


def test_a_constant_is_no_operand_and_no_result(builder, messages) -> None:
    constant = relax.const(np.ones((1, 4, 8), np.int8))
    module = builder.module(lambda b: b.emit(integer.relu(constant, name="r")))
    messages.check(refused(lambda: read_program(module)))
    function = relax.Function([], constant, constant.ty).with_attr("num_input", 0)
    whole = tvm.IRModule({"main": function})
    messages.check(refused(lambda: read_program(whole)))
