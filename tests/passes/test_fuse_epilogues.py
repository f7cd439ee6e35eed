"""FuseEpilogues: which operators become one kernel, and which must not."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.fuse_epilogues import FuseEpilogues
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.passes.specialise_shapes import SpecialiseShapes
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU
from tests.passes.models import encoder_program
from tests.passes.small import Body, calls, kernels, small_program

NAME = "main_b2_s3"


def fused(program: IntegerProgram) -> tvm.IRModule:
    return FuseEpilogues()(SpecialiseShapes([(2, 3)])(program)).module


def fused_kernels(body: Body, **inputs: str) -> dict[str, list[tuple[str, str]]]:
    return kernels(fused(small_program(body, **inputs)))


def feed_forward(p, inputs):
    inner = p.requantise("wide", p.linear("inner", inputs["x"], 8), 0.1, -9999, 9999, "int16")
    active = p.emit(
        integer.gelu(
            inner, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="gelu"
        )
    )
    return [p.requantise("active", active, 0.02, 0, 255, "uint8", 20)]


def test_linear_requantisation_gelu_requantisation_are_one_kernel() -> None:
    module = fused(small_program(feed_forward, x="int8"))
    assert kernels(module) == {
        "inner": [
            ("linear", "inner"),
            ("requantise", "wide"),
            ("gelu", "gelu"),
            ("requantise", "active"),
        ]
    }
    (call,) = (
        binding.value for binding in bindings(module[NAME]) if isinstance(binding.value, relax.Call)
    )
    kernel = module[call.op]
    assert call.op.name_hint == f"{NAME}_inner"
    assert kernel.attrs["ibert.kernel"] == "linear"
    assert kernel.attrs["ibert.layer"] == "inner"
    assert [var.name for var in kernel.params] == [
        "x",
        "inner.weight",
        "inner.bias",
        "wide.multiplier",
        "active.multiplier",
    ]
    assert [var.name for var in call.args] == [var.name for var in kernel.params]


def test_a_kernel_is_named_by_an_identifier() -> None:
    """Names of slices and of repeated layers hold characters that C and CUDA do not take."""

    def body(p, inputs):
        return [p.linear("up.0[0:8]#2", inputs["x"], 8)]

    module = fused(small_program(body, x="int8"))
    names = {var.name_hint for var in module.get_global_vars()}
    assert names == {NAME, f"{NAME}_up_0_0_8__2"}
    assert kernels(module) == {"up.0[0:8]#2": [("linear", "up.0[0:8]#2")]}


def gate(p, inputs):
    inner = p.requantise("narrow", p.linear("inner", inputs["x"], 8), 0.1, -9999, 9999, "int16")
    active = p.emit(
        integer.gelu(
            inner, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="gelu"
        )
    )
    outer = p.requantise("other", p.linear("outer", inputs["x"], 8), 0.1, -9999, 9999, "int16")
    product = p.emit(integer.multiply(active, outer, name="product"))
    return [p.requantise("gated", product, 1e-6, -127, 127, "int8")]


def test_a_gate_ends_in_the_epilogue_of_the_later_product() -> None:
    assert fused_kernels(gate, x="int8") == {
        "inner": [("linear", "inner"), ("requantise", "narrow"), ("gelu", "gelu")],
        "outer": [
            ("linear", "outer"),
            ("requantise", "other"),
            ("multiply", "product"),
            ("requantise", "gated"),
        ],
    }


def test_before_and_expected() -> None:
    def expected() -> tvm.IRModule:
        source = SpecialiseShapes([(2, 3)])(small_program(feed_forward, x="int8"))
        function = source.module[NAME]
        builder = relax.BlockBuilder()
        inside, outside = function.params[2:], function.params
        inner = relax.BlockBuilder()
        renamed = {var: relax.Var(var.name, var.ty) for var in inside}
        attrs = {"Primitive": True, "ibert.kernel": "linear", "ibert.layer": "inner"}
        with inner.function("kernel", list(renamed.values()), attrs=attrs, private=True):
            with inner.dataflow():
                for binding in bindings(function):
                    call = binding.value
                    moved = relax.Call(call.op, [renamed[arg] for arg in call.args], call.attrs)
                    last = binding.var.same_as(function.body.body)
                    renamed[binding.var] = (inner.emit_output if last else inner.emit)(moved)
            inner.emit_func_output(renamed[function.body.body])
        kernel = builder.add_func(inner.get()["kernel"], f"{NAME}_inner")
        with builder.function(NAME, list(outside), attrs=dict(function.attrs.items())):
            with builder.dataflow():
                value = builder.emit(relax.Call(kernel, list(inside)))
                output = builder.emit_output(value)
            builder.emit_func_output(output)
        return builder.get()

    result = fused(small_program(feed_forward, x="int8"))
    tvm.ir.assert_structural_equal(result, expected())


def test_a_residual_requantisation_moves_into_the_kernel_of_the_addition() -> None:
    def body(p, inputs):
        projected = p.requantise("projected", p.linear("dense", inputs["x"], 8), 0.5, dtype="int32")
        residual = p.requantise("residual", inputs["h"], 0.9, dtype="int32")
        return [p.emit(integer.add(projected, residual, name="sum"))]

    assert fused_kernels(body, x="int8", h="int16") == {
        "dense": [
            ("linear", "dense"),
            ("requantise", "projected"),
            ("requantise", "residual"),
            ("add", "sum"),
        ]
    }


def test_of_two_layers_that_are_added_the_later_one_brings_the_kernel() -> None:
    def body(p, inputs):
        a = p.requantise("a8", p.linear("a", inputs["x"], 8), 0.5, dtype="int32")
        b = p.requantise("b8", p.linear("b", inputs["x"], 8), 0.5, dtype="int32")
        return [p.emit(integer.add(a, b, name="sum"))]

    assert fused_kernels(body, x="int8") == {
        "a": [("linear", "a")],
        "b": [("requantise", "a8"), ("linear", "b"), ("requantise", "b8"), ("add", "sum")],
    }


def test_a_residual_that_others_read_stays_with_its_producer() -> None:
    def body(p, inputs):
        residual = p.requantise("residual", p.linear("early", inputs["x"], 8), 0.9, dtype="int32")
        late = p.requantise("late8", p.linear("late", inputs["x"], 8), 0.5, dtype="int32")
        return [p.emit(integer.add(late, residual, name="sum")), residual]

    assert fused_kernels(body, x="int8") == {
        "early": [("linear", "early"), ("requantise", "residual")],
        "late": [("linear", "late"), ("requantise", "late8"), ("add", "sum")],
    }


def test_a_layer_norm_with_two_readers_has_two_results() -> None:
    def body(p, inputs):
        norm = p.layer_norm("norm", inputs["h"])
        operand = p.requantise("operand", norm, 0.01)
        return [p.linear("dense", operand, 8), norm]

    module = fused(small_program(body, h="int32"))
    assert kernels(module) == {
        "norm": [("layer_norm", "norm"), ("requantise", "operand")],
        "dense": [("linear", "dense")],
    }
    kind = module[f"{NAME}_norm"].ret_ty
    assert [str(field.dtype) for field in kind.fields] == ["int16", "int8"]
    dense = next(
        binding.value
        for binding in bindings(module[NAME])
        if getattr(getattr(binding.value, "op", None), "name_hint", "") == f"{NAME}_dense"
    )
    operand = next(b.value for b in bindings(module[NAME]) if b.var.same_as(dense.args[0]))
    assert isinstance(operand, relax.TupleGetItem) and operand.index == 1


def test_nothing_joins_select_token_or_attention() -> None:
    found = kernels(fused(encoder_program()))
    assert found["attention"] == [("attention", "attention")]
    assert found["first"] == [("select_token", "first")]
    assert found["first_8"] == [("requantise", "first_8")]


def test_an_operator_does_not_join_a_kernel_that_runs_before_its_other_operand() -> None:
    def body(p, inputs):
        early = p.linear("early", inputs["x"], 8)
        late = p.layer_norm("late", inputs["h"])
        return [p.emit(integer.add(early, p.requantise("u", late, 0.5, dtype="int32"), name="sum"))]

    assert fused_kernels(body, x="int8", h="int32") == {
        "early": [("linear", "early")],
        "late": [("layer_norm", "late"), ("requantise", "u"), ("add", "sum")],
    }


def test_an_operator_whose_operands_are_ready_after_both_kernels_is_a_kernel_of_its_own() -> None:
    def body(p, inputs):
        early = p.linear("early", inputs["x"], 8)
        late = p.layer_norm("late", inputs["h"])
        active = p.emit(integer.relu(early, name="relu"))  # joins `early`, which runs before `late`
        return [p.emit(integer.add(active, late, name="sum"))]

    assert fused_kernels(body, x="int8", h="int32") == {
        "early": [("linear", "early"), ("relu", "relu")],
        "late": [("layer_norm", "late")],
        "sum": [("add", "sum")],
    }


def test_all_embeddings_join_their_sum() -> None:
    def body(p, inputs):
        total = None
        for name in ("word", "position", "type"):
            table = p.integers(f"{name}.table", -127, 127, (9, 8), "int8")
            factor = p.integers(f"{name}.multiplier", 1, 2**20, (9,), "int32")
            row = p.emit(integer.embedding(inputs["input_ids"], table, factor, name=name, shift=9))
            total = row if total is None else p.emit(integer.add(total, row, name=f"with_{name}"))
        return [total]

    assert fused_kernels(body) == {
        "with_position": [
            ("embedding", "word"),
            ("embedding", "position"),
            ("add", "with_position"),
            ("embedding", "type"),
            ("add", "with_type"),
        ]
    }


@pytest.mark.parametrize(
    "settings",
    [{}, {"preset": "paper"}, {"activation": "relu", "roberta": True}],
    ids=["accurate", "paper", "relu"],
)
def test_every_operator_is_in_exactly_one_kernel(settings: dict) -> None:
    program = SpecialiseShapes([(2, 3)])(encoder_program(**settings))
    module = FuseEpilogues()(program).module
    inside = [name for members in kernels(module).values() for _, name in members]
    before = [name for _, name in calls(program.module[NAME])]
    assert sorted(inside) == sorted(before)
    assert calls(module[NAME]) == []
    assert len(kernels(module)) == 16, "a fusion more or less changes the kernels of every model"


def fused_into_norms(program: IntegerProgram) -> tvm.IRModule:
    return FuseEpilogues(into_norms=True)(SpecialiseShapes([(2, 3)])(program)).module


def test_a_norm_takes_in_embeddings_and_the_places_of_tokens() -> None:
    module = fused_into_norms(encoder_program())
    assert kernels(module)["embedding_norm"] == [
        ("position_ids", "positions"),
        ("embedding", "word"),
        ("embedding", "position"),
        ("add", "embedded"),
        ("layer_norm", "embedding_norm"),
        ("requantise_short", "operand"),
    ]
    (kernel,) = (
        function
        for function in module.functions.values()
        if "Primitive" in function.attrs and function.attrs["ibert.layer"] == "embedding_norm"
    )
    assert kernel.attrs["ibert.kernel"] == "layer_norm"
    # What matrix products end with stays with these.
    assert len(kernels(module)) == 14
    assert ("add", "attention_sum") in kernels(module)["projected"]


def test_positions_that_are_counted_stay_a_kernel_of_their_own() -> None:
    found = kernels(fused_into_norms(encoder_program(roberta=True)))
    assert found["positions"] == [("position_ids", "positions")]
    assert ("embedding", "position") in found["embedding_norm"]


def test_a_norm_leaves_what_others_read_as_well() -> None:
    def residual(p, inputs):
        table = p.integers("table", -127, 127, (50, 8), "int8")
        factor = p.integers("factor", 1, 500, (50,), "int32")
        row = p.emit(integer.embedding(inputs["input_ids"], table, factor, name="word", shift=9))
        return [row, p.layer_norm("norm", row)]

    found = kernels(fused_into_norms(small_program(residual)))
    assert found == {"word": [("embedding", "word")], "norm": [("layer_norm", "norm")]}


def test_parameters_and_interface_stay() -> None:
    program = SpecialiseShapes([(2, 3)])(encoder_program())
    result = FuseEpilogues()(program)
    assert result.parameters is program.parameters
    before, after = program.module[NAME], result.module[NAME]
    assert [var.name for var in after.params] == [var.name for var in before.params]
    tvm.ir.assert_structural_equal(after.ret_ty, before.ret_ty)
    assert dict(after.attrs.items()) == dict(before.attrs.items())


def test_kernels_that_do_not_depend_on_the_sequence_serve_several_shapes() -> None:
    program = SpecialiseShapes([(2, 3), (2, 5)])(encoder_program())
    module = FuseEpilogues()(program).module
    layers = [
        str(function.attrs["ibert.layer"])
        for function in module.functions.values()
        if "Primitive" in function.attrs
    ]
    assert layers.count("pooler") == layers.count("first_8") == 1
    assert layers.count("attention") == layers.count("inner") == 2
