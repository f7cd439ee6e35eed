"""ShareKernels: layers that compute the same call one kernel."""

from __future__ import annotations

from tvm import tirx

from ibert_tvm.compiler.driver import kernel_table
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.passes import lower_to_kernels
from ibert_tvm.relay_passes.passes.share_kernels import LAYERS, called_kernels
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program

LAYOUT = KernelLayout("int8", 4, 4, 4)


def lowered(*scales: float, shapes=((1, 4),)):
    """Linear layers one after the other, each requantised by its scale; before and after."""

    def body(p: ProgramBuilder, inputs):
        value = inputs["x"]
        for place, scale in enumerate(scales):
            layer = p.linear(f"layer.{place}", value, CHANNELS)
            value = p.requantise_short(f"layer.{place}.8", layer, scale, channels=CHANNELS)
        return [value]

    modules = {}
    lower_to_kernels(small_program(body, x="int8"), LAYOUT, shapes, modules.__setitem__)
    return modules["emit_kernels"], modules["share_kernels"]


def kernels(module) -> dict[str, tirx.PrimFunc]:
    return {
        var.name_hint: function
        for var, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }


def test_equal_layers_call_one_kernel_named_after_the_first() -> None:
    before, after = lowered(2.0**-8, 2.0**-8, 2.0**-8)
    assert len(kernels(before)) == 3
    assert list(kernels(after)) == ["main_b1_s4_layer_0"]
    function = after["main_b1_s4"]
    assert [var.name_hint for var in called_kernels(function)] == ["main_b1_s4_layer_0"] * 3
    assert list(function.attrs[LAYERS]) == ["layer.0", "layer.1", "layer.2"]


def test_the_weights_of_each_layer_stay_arguments_of_its_call() -> None:
    before, after = lowered(2.0**-8, 2.0**-8)

    def weights(module):
        block = module["main_b1_s4"].body.blocks[0]
        calls = [b.value for b in block.bindings if b.value.op.name == "relax.call_tir"]
        return [[var.name for var in call.args[1].fields if "weight" in var.name] for call in calls]

    assert weights(after) == weights(before) == [["layer.0.weight"], ["layer.1.weight"]]


def test_a_layer_of_another_shift_keeps_its_own() -> None:
    _, after = lowered(2.0**-8, 2.0**-8, 2.0**-11)
    called = [var.name_hint for var in called_kernels(after["main_b1_s4"])]
    assert called == ["main_b1_s4_layer_0", "main_b1_s4_layer_0", "main_b1_s4_layer_2"]
    assert sorted(kernels(after)) == sorted(set(called))


def test_shapes_do_not_share() -> None:
    _, after = lowered(2.0**-8, 2.0**-8, shapes=((1, 4), (2, 4)))
    assert sorted(kernels(after)) == ["main_b1_s4_layer_0", "main_b2_s4_layer_0"]


def test_the_table_names_the_layer_of_each_call() -> None:
    _, after = lowered(2.0**-8, 2.0**-8)
    rows = kernel_table(after)["main_b1_s4"]
    assert [row["layer"] for row in rows] == ["layer.0", "layer.1"]
    assert [row["name"] for row in rows] == ["main_b1_s4_layer_0"] * 2
    assert [row["macs"] for row in rows] == [4 * CHANNELS * CHANNELS] * 2
    # Activations in and out, packed weights, and 32, 16 and 32 bits of constants per channel.
    assert [row["bytes"] for row in rows] == [2 * 4 * CHANNELS + 2 * 4 * 8 + CHANNELS * 10] * 2
