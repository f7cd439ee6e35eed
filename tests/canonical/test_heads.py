"""Heads that share keys, and norms of heads: what they mean, and shapes that mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.canonical.operators.attention import Attention
from ibert_tvm.relay_passes.canonical.operators.norms import LayerNorm, RmsNorm
from ibert_tvm.relay_passes.errors import CompilerError
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

HEADS, WIDTH = 4, 6


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_neighbouring_heads_read_the_same_keys(shared: int) -> None:
    q, k, v = values(2, 5, HEADS * WIDTH), *(values(2, 5, shared * WIDTH) for _ in "kv")
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    found = Attention("a", num_heads=HEADS, scale=0.4).evaluate(q, k, v, mask)
    for head in range(HEADS):
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        keys = slice(*(WIDTH * (head * shared // HEADS + i) for i in (0, 1)))
        one = Attention("a", num_heads=1, scale=0.4)
        expected = one.evaluate(q[..., own], k[..., keys], v[..., keys], mask)
        np.testing.assert_allclose(found[..., own], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, HEADS])
def test_a_norm_of_heads_is_one_of_each(rows: int) -> None:
    x, gamma, beta = values(2, 5, HEADS * WIDTH), values(rows, WIDTH), values(rows + 1, WIDTH)[1:]
    found = LayerNorm("n", epsilon=1e-5).evaluate(x, gamma, beta)
    rms = RmsNorm("n", epsilon=1e-5).evaluate(x, gamma)
    assert found.shape == rms.shape == x.shape
    for head in range(HEADS):
        own, row = slice(head * WIDTH, (head + 1) * WIDTH), head % rows
        expected = LayerNorm("n", epsilon=1e-5).evaluate(x[..., own], gamma[row], beta[row])
        np.testing.assert_allclose(found[..., own], expected, rtol=1e-5, atol=1e-6)
        expected = RmsNorm("n", epsilon=1e-5).evaluate(x[..., own], gamma[row])
        np.testing.assert_allclose(rms[..., own], expected, rtol=1e-5, atol=1e-6)


def var(dtype: str, *shape: int) -> relax.Var:
    return relax.Var("x", relax.TensorType(shape, dtype))


def float_attention(channels: int) -> None:
    q, k = var("float32", 1, 3, HEADS * WIDTH), var("float32", 1, 3, channels)
    build.attention(q, k, k, name="a", num_heads=HEADS, scale=1.0)


def integer_attention(channels: int) -> None:
    q, k = var("int8", 1, 3, HEADS * WIDTH), var("int8", 1, 3, channels)
    k_exp = ShortExponential.from_scale(1e-3)
    multiplier = var("int16", 1)
    attributes = {"softmax": "short", "exponential": k_exp, "shift": 7, "low": -127, "high": 127}
    integer.attention(q, k, k, None, multiplier, name="a", num_heads=HEADS, **attributes)


def float_norm(rows: int, width: int) -> None:
    x, gamma = var("float32", 1, 3, HEADS * WIDTH), var("float32", rows, width)
    build.rms_norm(x, gamma, name="n", epsilon=1e-5)


def integer_norm(rows: int, width: int) -> None:
    x, gain = var("int16", 1, 3, HEADS * WIDTH), var("int32", rows, width)
    norm = ShortLayerNorm.from_scale(1e-3, 1e-5, width)
    stored = {"shift": 14, "low": -127, "high": 127, "dtype": "int8"}
    integer.rms_norm_short(x, gain, norm, name="n", **stored)


@pytest.mark.parametrize(
    "build_it",
    [
        lambda: float_attention(3 * WIDTH),
        lambda: integer_attention(3 * WIDTH),
        lambda: integer_attention(WIDTH - 1),
        lambda: integer_attention(8 * WIDTH),
        lambda: float_norm(2, WIDTH),
        lambda: integer_norm(1, 5),
        lambda: integer_norm(HEADS, 2 * WIDTH),
    ],
)
def test_what_fits_no_heads_is_refused(build_it: Callable[[], Any], messages) -> None:
    with messages.raises(CompilerError):
        build_it()
