"""Heads of queries that share keys and values, however a torch module writes it."""

from __future__ import annotations

import pytest

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel, UnsupportedModelError
from tests.examples import examples
from tests.frontend.grouped_modules import HOW, grouped
from tests.frontend.imports import calls_of
from tests.snapshots import Messages


def widths_of(model: CanonicalModel) -> list[tuple[int, ...]]:
    """Channels of queries, keys and values, and heads of queries, of every attention."""
    return [
        (*(int(x.ty.shape.values[-1]) for x in call.args[:3]), int(call.attrs["num_heads"]))
        for call in calls_of(model, "attention")
    ]


@pytest.mark.parametrize("how", examples(HOW, "gqa"))
def test_keys_are_not_repeated(how: str) -> None:
    assert widths_of(ibert.load(grouped(how))) == [(48, 24, 24, 4)]


@pytest.mark.slow
def test_one_head_of_keys() -> None:
    assert widths_of(ibert.load(grouped("expand", shared=1))) == [(48, 12, 12, 4)]


@pytest.mark.slow
def test_rows_of_one_matrix() -> None:
    """Queries, keys and values of unequal widths are slices of one product."""
    assert widths_of(ibert.load(grouped("fused"))) == [(48, 24, 24, 4)]


@pytest.mark.slow
def test_repeated_queries_are_refused(messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        ibert.load(grouped("queries"), verify=False)


@pytest.mark.slow
def test_capped_scores() -> None:
    (call,) = calls_of(ibert.load(grouped("capped")), "attention")
    assert (float(call.attrs["cap"]), float(call.attrs["scale"])) == (5.0, 1.0)


def test_capped_masks_are_refused(messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        ibert.load(grouped("capped behind the mask"), verify=False)
