"""Rules of the canonical dialect: type inference and the check of whole modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import OPERATORS, CanonicalError, build, check_canonical
from tests.canonical.reference import Tiny


def tensor(name: str, *shape: int | tirx.Var, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(list(shape), dtype))


B, S = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
X = tensor("x", B, S, 8)
IDS = tensor("ids", B, S, dtype="int64")
MASK = tensor("mask", B, S, dtype="int64")
TABLE = tensor("table", 5, 8)
WEIGHT = tensor("weight", 4, 8)
BIAS = tensor("bias", 4)
GAMMA = tensor("gamma", 8)


def shape_of(call: relax.Call) -> str:
    return str(relax.BlockBuilder().normalize(call).ty)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (build.embedding(TABLE, IDS, name="a"), 'R.Tensor((batch, seq_len, 8), dtype="float32")'),
        (build.position_ids(IDS, name="a"), 'R.Tensor((batch, seq_len), dtype="int64")'),
        (
            build.linear(X, WEIGHT, BIAS, name="a"),
            'R.Tensor((batch, seq_len, 4), dtype="float32")',
        ),
        (
            build.attention(X, X, X, MASK, name="a", num_heads=2, scale=1.0),
            'R.Tensor((batch, seq_len, 8), dtype="float32")',
        ),
        (build.mean_pool(X, MASK, name="a"), 'R.Tensor((batch, 8), dtype="float32")'),
        (build.select_token(X, name="a"), 'R.Tensor((batch, 8), dtype="float32")'),
        (build.add(X, X, name="a"), 'R.Tensor((batch, seq_len, 8), dtype="float32")'),
    ],
)
def test_shapes_stay_symbolic(call, expected):
    assert expected in shape_of(call)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: build.linear(X, tensor("w", 4, 9), BIAS, name="layer.3.dense"),
            "dimension K of x and weight differ: 8 and 9\n"
            "  where: canonical.linear 'layer.3.dense'\n"
            "  why: canonical.linear takes x [..., K] and weight [N, K]\n"
            "  what to do: check which tensor was passed",
        ),
        (
            lambda: build.add(X, tensor("y", B, 7, 8), name="sum"),
            "leading dimensions of a and b differ: [batch, seq_len] and [batch, 7]\n"
            "  where: canonical.add 'sum'\n"
            "  why: canonical.add takes a [..., C] and b [..., C]\n"
            "  what to do: check which tensor was passed",
        ),
        (
            lambda: build.attention(X, X, X, MASK, name="self", num_heads=3, scale=1.0),
            "8 channels do not divide by 3 heads\n  where: canonical.attention 'self'\n"
            "  why: every head has the same number of channels\n  what to do: check num_heads",
        ),
        (
            lambda: build.attention(
                X, X, X, MASK, tensor("b", 3, 9), name="self", num_heads=2, scale=1.0
            ),
            "a bias of 3 rows of 9 entries for 2 heads and seq_len tokens\n"
            "  where: canonical.attention 'self'\n"
            "  why: it has a row for each head, or one for all, and an entry for each distance "
            "from 1 - positions to positions - 1, or for each pair of positions\n"
            "  what to do: give the bias for sequences as long as the model takes",
        ),
        (
            lambda: build.attention(
                X, X, X, MASK, name="self", num_heads=2, scale=1.0, before=4, after=-1
            ),
            "a window of 4 keys before and -1 after the query\n"
            "  where: canonical.attention 'self'\n  why: a query sees itself at least\n"
            "  what to do: give distances of 0 and more",
        ),
        (
            lambda: build.gelu(X, name="act", form="quick"),
            "unknown form 'quick'\n  where: canonical.gelu 'act'\n"
            "  why: the canonical dialect does not define it\n  what to do: use one of: erf, tanh",
        ),
        (
            lambda: build.position_ids(IDS, name="ids", kind="relative"),
            "unknown kind 'relative'\n  where: canonical.position_ids 'ids'\n"
            "  why: the canonical dialect does not define it\n"
            "  what to do: use one of: absolute, roberta",
        ),
        (
            lambda: build.tanh(tensor("h", B, 4, dtype="float16"), name="act"),
            "operand x is float16\n  where: canonical.tanh 'act'\n"
            "  why: allowed: float32\n"
            "  what to do: cast it before it reaches the operator",
        ),
        (
            lambda: build.select_token(tensor("h", B, 8), name="first"),
            "operand x has 2 dimensions\n  where: canonical.select_token 'first'\n"
            "  why: canonical.select_token needs 3\n  what to do: check which tensor was passed",
        ),
        (
            lambda: relax.Call(
                tvm.ir.Op.get("canonical.relu"), [X, X], tvm.ir.make_node("ir.DictAttrs", name="r")
            ),
            "canonical.relu got 2 operands\n  where: canonical.relu 'r'\n"
            "  why: they are said to be: x\n"
            "  what to do: build the call with ibert_tvm.relay_passes.canonical",
        ),
        (
            lambda: build.relu(relax.Var("u", relax.TensorType(dtype="float32", ndim=2)), name="r"),
            'operand x has no known shape (R.Tensor(dtype="float32", ndim=2))\n'
            "  where: canonical.relu 'r'\n"
            "  why: widths and kernels depend on shapes\n"
            "  what to do: give the variable a TensorType with dimensions (symbolic ones serve)",
        ),
    ],
)
def test_wrong_operands_are_refused_when_the_call_is_built(make, message):
    with pytest.raises(CanonicalError) as error:
        relax.BlockBuilder().normalize(make())
    assert str(error.value) == message


def module_of(
    emit: Callable[[relax.BlockBuilder, relax.Var, relax.Var, relax.Var], relax.Expr],
    *,
    inputs: int | None = 2,
    extra: list[relax.Var] | None = None,
) -> tvm.IRModule:
    """A module main(ids, mask, table, *extra) whose body is what `emit` emits."""
    ids, mask = (
        relax.Var(n, relax.TensorType([B, S], "int64")) for n in ("input_ids", "attention_mask")
    )
    table = tensor("table", 5, 8)
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, mask, table, *(extra or [])]):
        with builder.dataflow():
            output = builder.emit_output(emit(builder, ids, mask, table))
        builder.emit_func_output(output)
    module = builder.get()
    if inputs is not None:
        module["main"] = module["main"].with_attr("num_input", inputs)
    return module


def embed(b: relax.BlockBuilder, ids: relax.Var, table: relax.Var, name: str = "e") -> relax.Var:
    return b.emit(build.embedding(table, ids, name=name))


def test_json_keeps_a_canonical_module():
    module = Tiny().module
    again = tvm.ir.load_json(tvm.ir.save_json(module))
    tvm.ir.assert_structural_equal(module, again)
    check_canonical(again)


def test_bound_shapes_are_still_canonical():
    module = relax.transform.BindSymbolicVars({"batch": 2, "seq_len": 5})(Tiny().module)
    check_canonical(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=None),
            "main has no attribute num_input\n  where: function main\n"
            "  why: it tells inputs from weights, which are both parameters\n"
            "  what to do: set it with function.with_attr('num_input', n)",
        ),
        (
            lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=9),
            "num_input is 9\n  where: function main\n"
            "  why: main has 3 parameters and at least one input\n"
            "  what to do: count the leading parameters that are not weights",
        ),
        (
            lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=3),
            "input table is float32 with 2 dimensions\n  where: parameter 'table'\n"
            "  why: inputs are int64 [batch, seq_len] or float32 [batch, channels, height, width] "
            "or [batch, channels, frames]\n"
            "  what to do: cast or reshape in the frontend",
        ),
        (
            lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=1),
            'weight attention_mask is R.Tensor((batch, seq_len), dtype="int64")\n'
            "  where: parameter 'attention_mask'\n"
            "  why: weights are float32 with a static shape\n"
            "  what to do: cast it, and bind its shape",
        ),
        (
            lambda: module_of(
                lambda b, i, m, t: embed(b, i, t), extra=[tensor("table", 2), tensor("z", 1)]
            ),
            "two parameters are named table\n  where: parameter 'table'\n"
            "  why: parameters are bound by name\n  what to do: rename one",
        ),
        (
            lambda: module_of(
                lambda b, i, m, t: b.emit(relax.op.sin(embed(b, i, t))),
            ),
            "relax.sin is not a canonical operator\n  where: variable 'lv1'\n"
            f"  why: the canonical form has only: {', '.join(OPERATORS)}\n"
            "  what to do: canonicalise the module first (ibert_tvm.frontend)",
        ),
        (
            lambda: module_of(
                lambda b, i, m, t: b.emit(build.tanh(embed(b, i, t, "same"), name="same"))
            ),
            "two values are named same\n  where: canonical.tanh 'same'\n"
            "  why: scales, reports and errors are keyed by it\n"
            "  what to do: give every value its own name",
        ),
        (
            lambda: module_of(lambda b, i, m, t: embed(b, i, t, "")),
            "the name is empty\n  where: canonical.embedding ''\n"
            "  why: scales, reports and errors are keyed by it\n"
            "  what to do: give every value its own name",
        ),
        (
            lambda: module_of(
                lambda b, i, m, t: b.emit(
                    build.layer_norm(
                        embed(b, i, t),
                        relax.const([1.0] * 8, "float32"),
                        relax.const([0.0] * 8, "float32"),
                        name="n",
                        epsilon=1e-5,
                    )
                )
            ),
            "operand gamma is a GenericConst, not a defined variable\n"
            "  where: canonical.layer_norm 'n'\n"
            "  why: operands are results of canonical operators or parameters, never constants\n"
            "  what to do: emit it, or make it a parameter",
        ),
        (
            lambda: module_of(
                lambda b, i, m, t: b.emit(
                    build.mean_pool(
                        embed(b, i, t), b.emit(build.position_ids(i, name="p")), name="pool"
                    )
                )
            ),
            "operand attention_mask is lv1, which is not an input of the model\n"
            "  where: canonical.mean_pool 'pool'\n"
            "  why: the padding mask (0 is padding) and pixels are inputs themselves: nothing "
            "computes them in integers\n"
            "  what to do: pass the input itself",
        ),
        (
            lambda: module_of(lambda b, i, m, t: b.emit(build.position_ids(i, name="p"))),
            'output 0 is R.Tensor((batch, seq_len), dtype="int64")\n  where: function main\n'
            "  why: outputs are float32 tensors\n"
            "  what to do: return a value of a canonical operator other than position_ids",
        ),
        (
            lambda: tvm.IRModule({}),
            "the module has no Relax function 'main'\n  where: the module\n"
            "  why: a canonical module has exactly one function, main\n"
            "  what to do: build it with relax.BlockBuilder().function('main', ...)",
        ),
    ],
)
def test_broken_modules_are_refused(module, message):
    with pytest.raises(CanonicalError) as error:
        check_canonical(module())
    assert str(error.value) == message


def test_a_missing_attribute_is_refused():
    def emit(b, i, m, t):
        attrs = tvm.ir.make_node("ir.DictAttrs", name="g")
        return b.emit(relax.Call(tvm.ir.Op.get("canonical.gelu"), [embed(b, i, t)], attrs))

    with pytest.raises(CanonicalError) as error:
        check_canonical(module_of(emit))
    assert str(error.value) == (
        "attribute form is missing\n  where: g\n  why: canonical.gelu needs a string\n"
        "  what to do: build the call with ibert_tvm.relay_passes.canonical"
    )
