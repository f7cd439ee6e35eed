"""Rules of the canonical dialect: type inference and the check of whole modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import CanonicalError, build, check_canonical
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


def shape_of(call: relax.Call) -> str:
    return str(relax.BlockBuilder().normalize(call).ty)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (build.embedding(TABLE, IDS, name="a"), 'R.Tensor((batch, seq_len, 8), dtype="float32")'),
        (build.position_ids(IDS, name="a"), 'R.Tensor((batch, seq_len), dtype="int64")'),
        (build.linear(X, WEIGHT, BIAS, name="a"), 'R.Tensor((batch, seq_len, 4), dtype="float32")'),
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
    "make",
    [
        lambda: build.linear(X, tensor("w", 4, 9), BIAS, name="layer.3.dense"),
        lambda: build.add(X, tensor("y", B, 7, 8), name="sum"),
        lambda: build.attention(X, X, X, MASK, name="self", num_heads=3, scale=1.0),
        lambda: build.attention(
            X, X, X, MASK, tensor("b", 3, 9), name="self", num_heads=2, scale=1.0
        ),
        lambda: build.attention(
            X, X, X, MASK, name="self", num_heads=2, scale=1.0, before=4, after=-1
        ),
        lambda: build.gelu(X, name="act", form="quick"),
        lambda: build.position_ids(IDS, name="ids", kind="relative"),
        lambda: build.tanh(tensor("h", B, 4, dtype="float16"), name="act"),
        lambda: build.select_token(tensor("h", B, 8), name="first"),
        lambda: relax.Call(
            tvm.ir.Op.get("canonical.relu"), [X, X], tvm.ir.make_node("ir.DictAttrs", name="r")
        ),
        lambda: build.relu(relax.Var("u", relax.TensorType(dtype="float32", ndim=2)), name="r"),
    ],
)
def test_wrong_operands_are_refused_when_the_call_is_built(make, messages):
    with messages.raises(CanonicalError):
        relax.BlockBuilder().normalize(make())


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
    "module",
    [
        lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=None),
        lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=9),
        lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=3),
        lambda: module_of(lambda b, i, m, t: embed(b, i, t), inputs=1),
        lambda: module_of(
            lambda b, i, m, t: embed(b, i, t), extra=[tensor("table", 2), tensor("z", 1)]
        ),
        lambda: module_of(lambda b, i, m, t: b.emit(relax.op.sin(embed(b, i, t)))),
        lambda: module_of(
            lambda b, i, m, t: b.emit(build.tanh(embed(b, i, t, "same"), name="same"))
        ),
        lambda: module_of(lambda b, i, m, t: embed(b, i, t, "")),
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
        lambda: module_of(
            lambda b, i, m, t: b.emit(
                build.mean_pool(
                    embed(b, i, t), b.emit(build.position_ids(i, name="p")), name="pool"
                )
            )
        ),
        lambda: module_of(lambda b, i, m, t: b.emit(build.position_ids(i, name="p"))),
        lambda: tvm.IRModule({}),
    ],
)
def test_broken_modules_are_refused(module, messages):
    with messages.raises(CanonicalError):
        check_canonical(module())


def test_a_missing_attribute_is_refused(messages):
    def emit(b, i, m, t):
        attrs = tvm.ir.make_node("ir.DictAttrs", name="g")
        return b.emit(relax.Call(tvm.ir.Op.get("canonical.gelu"), [embed(b, i, t)], attrs))

    with messages.raises(CanonicalError):
        check_canonical(module_of(emit))
