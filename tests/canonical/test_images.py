"""Image models in canonical form: patches, tokens, positions, attention without a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import CanonicalError, FloatModel, build, check_canonical
from tests.canonical.reference import run

TOLERANCE = 2e-5
CHANNELS, HEIGHT, WIDTH = 3, 9, 8
PATCH = (4, 2)
HIDDEN, HEADS, PREFIX = 12, 2, 2
TOKENS = (HEIGHT // PATCH[0]) * (WIDTH // PATCH[1])


class Tiny:
    """The first layer of a ViT; the image's last row fills no patch."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        pixels = relax.Var(
            "pixel_values",
            relax.TensorType([tirx.Var("batch", "int64"), CHANNELS, HEIGHT, WIDTH], "float32"),
        )
        shapes = {
            "embed.weight": (HIDDEN, CHANNELS * PATCH[0] * PATCH[1]),
            "embed.bias": (HIDDEN,),
            "prefix": (PREFIX, HIDDEN),
            "places": (TOKENS + PREFIX, HIDDEN),
        }
        self.parameters = {
            name: (random.normal(size=shape) * 0.4).astype(np.float32)
            for name, shape in shapes.items()
        }
        w = {n: relax.Var(n, relax.TensorType(list(s), "float32")) for n, s in shapes.items()}
        b = relax.BlockBuilder()
        with b.function("main", [pixels, *w.values()]):
            with b.dataflow():
                x = b.emit(
                    build.patches(
                        pixels, name="patches", patch_height=PATCH[0], patch_width=PATCH[1]
                    )
                )
                x = b.emit(build.linear(x, w["embed.weight"], w["embed.bias"], name="embed"))
                x = b.emit(build.prepend_tokens(x, w["prefix"], name="tokens"))
                x = b.emit(build.add_positions(x, w["places"], name="positions"))
                x = b.emit(build.attention(x, x, x, name="attention", num_heads=HEADS, scale=0.4))
                mean = b.emit(build.mean_pool(x, name="mean"))
                outputs = [b.emit_output(item) for item in (x, mean)]
            b.emit_func_output(relax.Tuple(outputs))
        self.module = b.get()
        self.module["main"] = self.module["main"].with_attr("num_input", 1)

    def inputs(self, batch: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(batch)
        pixels = random.normal(size=(batch, CHANNELS, HEIGHT, WIDTH))
        return {"pixel_values": pixels.astype(np.float32)}


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


def test_patches_hold_the_pixels_in_the_order_of_convolution_weights(tiny):
    inputs = tiny.inputs(2)
    values = FloatModel(tiny.module, tiny.parameters, ["patches"]).run(inputs).values
    image = inputs["pixel_values"][1]
    assert values["patches"].shape == (2, TOKENS, 24)
    np.testing.assert_array_equal(values["patches"][1, 5], image[:, 4:8, 2:4].reshape(-1))


def test_an_image_module_is_canonical_and_its_length_is_static(tiny):
    check_canonical(tiny.module)
    hidden = tiny.module["main"].body.body.ty.fields[0]
    batch, tokens, channels = hidden.shape.values
    assert (batch.name, int(tokens), int(channels)) == ("batch", TOKENS + PREFIX, HIDDEN)


@pytest.mark.parametrize("batch", [1, 3])
def test_evaluation_computes_every_value(tiny, batch):
    arrays: dict[str, Any] = {**tiny.inputs(batch), **tiny.parameters}
    expected = run(tiny.module, arrays)
    result = FloatModel(tiny.module, tiny.parameters, "all").run(tiny.inputs(batch))
    for name, value in expected.items():
        np.testing.assert_allclose(result.values[name], value, atol=TOLERANCE, err_msg=name)


def test_images_of_another_size_are_refused(tiny, messages):
    executable = FloatModel(tiny.module, tiny.parameters)
    with messages.raises(CanonicalError):
        executable.run({"pixel_values": np.zeros((1, 3, 8, 8), np.float32)})


def refused(make: Callable[[], relax.Call]) -> str:
    b = relax.BlockBuilder()
    with pytest.raises(CanonicalError) as error, b.function("main", []), b.dataflow():
        b.emit(make())
    return str(error.value)


def hidden(name: str, *shape: int) -> relax.Var:
    return relax.Var(name, relax.TensorType(list(shape), "float32"))


def test_refusals_of_the_image_operators(messages):
    pixels = hidden("pixel_values", 2, 3, 8, 8)
    messages.check(
        refused(lambda: build.patches(pixels, name="p", patch_height=16, patch_width=16))
    )
    x = hidden("x", 2, 4, 6)
    assert refused(lambda: build.prepend_tokens(x, hidden("t", 1, 5), name="t")).splitlines()[
        0
    ] == ("dimension C of x and tokens differ: 6 and 5")
    assert refused(lambda: build.add_positions(x, hidden("t", 5, 6), name="t")).splitlines()[0] == (
        "dimension S of x and table differ: 4 and 5"
    )
    mask = relax.Var("m", relax.TensorType([2, 4], "int64"))
    call = build.attention(x, x, x, mask, name="a", num_heads=2, scale=1.0)
    extra = relax.Call(call.op, [*call.args, mask], call.attrs)
    messages.check(refused(lambda: extra))


def test_patches_are_cut_out_of_an_input(messages):
    b = relax.BlockBuilder()
    pixels = relax.Var(
        "pixel_values", relax.TensorType([tirx.Var("batch", "int64"), 3, 4, 4], "float32")
    )
    weight = hidden("table", 2, 3, 4, 4)
    with b.function("main", [pixels, weight]):
        with b.dataflow():
            out = b.emit_output(
                b.emit(build.patches(weight, name="p", patch_height=2, patch_width=2))
            )
        b.emit_func_output(out)
    module = b.get()
    module["main"] = module["main"].with_attr("num_input", 1)
    with messages.raises(CanonicalError):
        check_canonical(module)
