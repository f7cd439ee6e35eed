"""Lowering of poolings, of joined channels and of tokens that move."""

from __future__ import annotations

import pytest

from ibert_tvm.relay_passes.canonical import build
from tests.lower.lowering import (
    LINEAR,
    LINEAR_TABLE,
    STREAM,
    SUM,
    kinds,
    linear,
    lower,
    native_scale,
    records,
)


@pytest.mark.parametrize(("make", "kind"), [("max_pool", "MaxPool"), ("last_token", "LastToken")])
def test_a_maximum_and_a_last_token_keep_accumulators_and_their_scales(make, kind) -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(getattr(build, make)(linear(emit, x, w), mask, name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"y": STREAM},
    )
    assert [found for found, _ in kinds(lowered, "up")] == [kind, "Requantise"]
    assert native_scale(lowered, "y") == native_scale(lowered, "up")
    assert len(set(native_scale(lowered, "y"))) == 3


@pytest.mark.parametrize(
    ("make", "summed", "bits"),
    [
        (build.weighted_mean_pool, False, 8),
        (build.sqrt_mean_pool, False, 0),
        (build.mean_pool, False, 8),
        (build.mean_pool, True, 7),
    ],
)
def test_means_keep_as_many_fraction_bits_as_int32_has_room_for(make, summed, bits) -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(
            make(emit(build.add(x, x, name="sum")) if summed else x, mask, name="y")
        ),
        stream={"sum": SUM},
    )
    assert records(lowered)["y"].fraction_bits == bits
    assert lowered.scales["outputs"][0]["scale"] == SUM.scale / 2**bits


def test_select_token_takes_one_token_before_anything_is_requantised() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.tanh(emit(build.select_token(linear(emit, x, w), name="one")), name="y")
        ),
        LINEAR,
        **LINEAR_TABLE,
        stream={"one": STREAM},
    )
    assert [name for _, name in kinds(lowered, "up")] == ["one", "one.stream", "y"]
    assert lowered.scales["outputs"][0]["scale"] == 2.0**-15


def test_joined_channels_have_scales_of_their_own() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.concatenate(linear(emit, x, w), x, name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"y": STREAM},
    )
    assert native_scale(lowered, "y") == [*native_scale(lowered, "up"), SUM.scale, SUM.scale]


def test_what_moves_tokens_keeps_type_and_scale() -> None:
    def body(emit, x, mask, w):
        y = emit(build.mask_tokens(x, mask, name="masked"))
        return emit(build.shift_tokens(y, name="shifted", distance=-1))

    lowered = lower(body)
    assert kinds(lowered) == [("MaskTokens", "masked"), ("ShiftTokens", "shifted")]
    assert lowered.scales["outputs"][0]["scale"] == SUM.scale
