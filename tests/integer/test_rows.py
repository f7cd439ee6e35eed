"""Fewer rows in the tables that ids look up."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.positions import PositionIds
from ibert_tvm.relay_passes.integer.rows import fixed_ids, keep_rows, tables_of
from tests.integer.test_document import EXAMPLE, LONGER, TOKENS, program


@pytest.mark.parametrize(("kind", "fixed"), [("roberta", 4), ("absolute", 0)])
def test_positions_that_count_from_padding_fix_its_id(kind: str, fixed: int) -> None:
    places = PositionIds("places", kind, 0, 3)
    assert fixed_ids(program([(places, {"input_ids": "ids"})], ids=TOKENS), "ids") == fixed


def test_kept_rows_give_what_they_gave() -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.integers(-100, 100, type_.shape).astype(type_.dtype)
        for name, type_ in LONGER.parameters.items()
    }
    rows = np.array([0, 3, 4, 29])
    cut, kept = keep_rows(LONGER, arrays, "input_ids", rows)
    assert {name: a.shape for name, a in kept.items()} == {
        name: type_.shape for name, type_ in cut.parameters.items()
    }
    assert kept["table"].shape == (4, 8) and kept["tokens"] is arrays["tokens"]
    ids = random.integers(0, 4, (2, 5))
    (before,) = evaluate(LONGER, {"input_ids": rows[ids]}, arrays)
    (after,) = evaluate(cut, {"input_ids": ids}, kept)
    np.testing.assert_array_equal(before, after)


def test_a_multiplier_of_all_rows_stays() -> None:
    assert tables_of(EXAMPLE, "input_ids") == {"words.weight"}
    assert tables_of(EXAMPLE, "token_type_ids") == set()
