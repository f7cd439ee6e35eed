"""EmitKernels: what the module looks like once every fused function is a kernel."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram, lower_to_kernels
from ibert_tvm.relay_passes.passes.emit_kernels import EmitKernels
from ibert_tvm.relay_passes.passes.fuse_epilogues import FuseEpilogues
from ibert_tvm.relay_passes.passes.offset_activations import OffsetActivations
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.passes.specialise_shapes import SpecialiseShapes
from tests.passes.models import ProgramBuilder, encoder_program
from tests.passes.small import CHANNELS, Inputs, small_program
from tests.snapshots import Messages

LAYOUT = KernelLayout("uint8", 16, 4, 8)
SHAPE, NAME = (2, 3), "main_b2_s3"
LINEAR = ("q", "k", "v", "projected", "inner", "outer", "pooler")


def emitted(
    program: IntegerProgram, layout: KernelLayout = LAYOUT
) -> tuple[IntegerProgram, IntegerProgram]:
    """The program fused, and emitted."""
    program = OffsetActivations(layout)(program)
    bounds = analyse_ranges(program.module, program.parameters, max_seq_len=SHAPE[1]).values
    fused = FuseEpilogues()(SpecialiseShapes([SHAPE])(program))
    return fused, EmitKernels(layout, bounds)(fused)


@pytest.fixture(scope="module")
def encoder() -> tuple[IntegerProgram, IntegerProgram]:
    return emitted(encoder_program(hidden=30, heads=3, feed_forward=50))


def kernels(module: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Kernels by the layer they are named after."""
    return {
        str(function.attrs["ibert.layer"]): function
        for function in module.functions.values()
        if isinstance(function, tirx.PrimFunc)
    }


def buffers(func: tirx.PrimFunc) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of every argument."""
    return [described(param.ty) for param in func.params]


def described(kind) -> tuple[tuple[int, ...], str]:
    dimensions = getattr(kind.shape, "values", kind.shape)
    return tuple(int(size) for size in dimensions), str(kind.dtype)


def test_every_fused_function_is_one_kernel_and_says_which(encoder) -> None:
    fused, result = encoder
    before = {
        str(function.attrs["ibert.layer"]): str(function.attrs["ibert.kernel"])
        for function in fused.module.functions.values()
        if "Primitive" in function.attrs
    }
    after = {layer: str(f.attrs["ibert.kernel"]) for layer, f in kernels(result.module).items()}
    assert after == before
    assert {layer: kind for layer, kind in after.items() if layer in LINEAR} == dict.fromkeys(
        LINEAR, "linear"
    )
    assert set(after.values()) == {
        "position_ids",
        "add",
        "layer_norm",
        "layer_norm_short",
        "linear",
        "attention",
        "mean_pool",
        "select_token",
        "requantise",
    }


def test_functions_consist_of_kernel_calls_and_reshapes_of_results(encoder) -> None:
    _, result = encoder
    module = result.module
    (function,) = (f for f in module.functions.values() if isinstance(f, relax.Function))
    called = []
    for binding in bindings(function):
        value = binding.value
        if isinstance(value, relax.Call):
            called.append(value.op.name)
    assert called.count("relax.call_tir") == len(kernels(module))
    assert called.count("relax.reshape") == 1  # the hidden state leaves as [batch, seq, channels]
    assert set(called) == {"relax.call_tir", "relax.reshape"}
    assert relax.analysis.check_well_formed(module)


def test_kernels_pass_tokens_on_as_one_axis(encoder) -> None:
    _, result = encoder
    for binding in bindings(result.module[NAME]):
        value = binding.value
        if isinstance(value, relax.Call) and value.op.name == "relax.call_tir":
            kinds = value.ty_args[0]
            for kind in kinds.fields if isinstance(kinds, relax.TupleType) else [kinds]:
                shape, _ = described(kind)
                assert len(shape) == 2
                assert shape in {(6, 30), (6, 50), (2, 30), (2, 3)}


def test_every_call_passes_what_its_kernel_declares(encoder) -> None:
    _, result = encoder
    checked = 0
    for binding in bindings(result.module[NAME]):
        call = binding.value
        if not (isinstance(call, relax.Call) and call.op.name == "relax.call_tir"):
            continue
        kinds = call.ty_args[0]
        results = list(kinds.fields) if isinstance(kinds, relax.TupleType) else [kinds]
        passed = [described(arg.ty) for arg in call.args[1].fields]
        passed = [
            ((shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape, dtype)
            for shape, dtype in passed
        ]
        declared = buffers(result.module[call.args[0]])
        assert passed + [described(kind) for kind in results] == declared
        checked += 1
    assert checked == len(kernels(result.module))


def test_the_interface_stays_but_for_packed_weights(encoder) -> None:
    fused, result = encoder
    before, after = fused.module[NAME], result.module[NAME]
    tvm.ir.assert_structural_equal(after.ret_ty, before.ret_ty)
    assert dict(after.attrs.items()) == dict(before.attrs.items())
    assert [var.name for var in after.params] == [var.name for var in before.params]
    packed = {f"{layer}.weight" for layer in LINEAR}
    for old, new in zip(before.params, after.params, strict=True):
        if old.name in packed:
            shape = LAYOUT.packed_shape(*described(old.ty)[0])
            assert described(new.ty) == (shape, "int8")
        else:
            tvm.ir.assert_structural_equal(new.ty, old.ty)


def test_weights_are_packed_and_other_parameters_untouched(encoder) -> None:
    fused, result = encoder
    assert list(result.parameters) == list(fused.parameters)
    for name, array in fused.parameters.items():
        stored = result.parameters[name]
        if name not in {f"{layer}.weight" for layer in LINEAR}:
            assert stored is array
            continue
        assert stored.flags.c_contiguous and stored.dtype == np.int8
        assert stored.shape == LAYOUT.packed_shape(*array.shape)
        rows, depth = array.shape
        whole = stored.transpose(0, 2, 1, 3).reshape(
            LAYOUT.padded_columns(rows), LAYOUT.padded_depth(depth)
        )
        np.testing.assert_array_equal(whole[:rows, :depth], array)
        assert not whole[rows:].any() and not whole[:, depth:].any()


def test_attributes_tell_schedules_what_they_must_know(encoder) -> None:
    _, result = encoder
    found = kernels(result.module)
    for layer in (*LINEAR, "attention"):
        rows = {"attention": SHAPE[1], "pooler": SHAPE[0]}.get(layer, 6)
        assert int(found[layer].attrs["ibert.row_tile"]) == LAYOUT.row_tile(rows)[0], layer
    # 30 and 50 are no multiples of the instruction's depth: the operand is copied and padded.
    assert all("ibert.lhs_copied" in found[layer].attrs for layer in LINEAR)
    even = kernels(emitted(encoder_program(hidden=32, heads=4, feed_forward=64))[1].module)
    assert not any("ibert.lhs_copied" in even[layer].attrs for layer in LINEAR)
    for func in found.values():
        keys = {key for key in dict(func.attrs.items()) if key.startswith("ibert.")}
        assert keys <= {
            "ibert.kernel",
            "ibert.layer",
            "ibert.macs",
            "ibert.row_tile",
            "ibert.lhs_copied",
            "ibert.whole_tiles",
        }


def test_an_operand_of_16_bits_is_copied_in_every_linear_kernel() -> None:
    layout = KernelLayout("int16", 8, 2, 4)
    _, result = emitted(encoder_program(hidden=32, heads=4, feed_forward=64), layout)
    for layer, func in kernels(result.module).items():
        assert ("ibert.lhs_copied" in func.attrs) == (layer in LINEAR)


def test_kernels_compute_in_the_width_that_the_ranges_prove() -> None:
    def program(low: int, high: int) -> IntegerProgram:
        def body(p, inputs):
            wide = p.requantise("wide", p.linear("layer", inputs["x"], 8), 0.5, low, high, "int32")
            return [p.requantise("narrow", wide, 1e-3)]

        return small_program(body, x="uint8")

    def widths(low: int, high: int) -> set[str]:
        (func,) = kernels(emitted(program(low, high))[1].module).values()
        text = func.script(show_meta=False)
        body = text[text.index('T.sblock("requantised_1")') :]
        return {"int64"} if "int64" in body else {"int32"}

    assert widths(-(2**20), 2**20) == {"int64"}
    assert widths(-(2**9), 2**9) == {"int32"}


def test_an_operand_of_the_wrong_signedness_names_the_layer(messages: Messages) -> None:
    def body(p, inputs):
        return [p.linear("encoder.layer.2.query", inputs["x"], 8)]

    program = SpecialiseShapes([SHAPE])(small_program(body, x="int8"))
    with messages.raises(LoweringError):
        EmitKernels(LAYOUT, {})(FuseEpilogues()(program))


def test_a_range_that_no_integer_holds_names_the_layer() -> None:
    def body(p, inputs):
        return [p.requantise("encoder.layer.2.narrow", inputs["x"], 0.5)]

    program = SpecialiseShapes([SHAPE])(small_program(body, x="int64"))
    with pytest.raises(RangeError) as caught:
        EmitKernels(LAYOUT, {"x": (-(2**62), 2**62)})(FuseEpilogues()(program))
    assert caught.value.where == "encoder.layer.2.narrow"
    assert caught.value.what == "product of 92 bits does not fit 64"


def test_equal_kernels_of_several_shapes_are_emitted_once() -> None:
    # (2, 6) and (3, 4) have 12 tokens each: kernels that see tokens only are the same.
    lowered = lower_to_kernels(encoder_program(), LAYOUT, [(2, 6), (3, 4)])
    layers = [
        str(function.attrs["ibert.layer"])
        for function in lowered.program.module.functions.values()
        if isinstance(function, tirx.PrimFunc)
    ]
    assert {layer: layers.count(layer) for layer in ("inner", "outer", "attention", "mean")} == {
        "inner": 1,
        "outer": 1,
        "attention": 2,
        "mean": 2,
    }


def test_a_weight_that_an_embedding_reads_too_is_refused(messages: Messages) -> None:
    def body(p: ProgramBuilder, inputs: Inputs) -> list[relax.Var]:
        table = p.integers("tied", -127, 127, (16, CHANNELS), "int8")
        factor = p.integers("factor", 1, 9, (1,), "int32")
        ids = inputs["input_ids"]
        embedded = p.emit(integer.embedding(ids, table, factor, name="embedded", shift=4))
        operand = p.requantise("operand", embedded, 0.5)
        bias = p.integers("bias", -9, 9, (16,), "int32")
        return [p.emit(integer.linear(operand, table, bias, name="logits"))]

    with messages.raises(LoweringError):
        emitted(small_program(body))
