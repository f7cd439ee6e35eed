"""Lists of a request: how long they may be."""

from __future__ import annotations

import pytest

from tests.extras import needs


def test_a_list_that_is_too_long_is_refused_before_its_elements_are_read() -> None:
    needs("pydantic")
    from pydantic import ValidationError

    from ibert_tvm.serve.documents import MOST_ITEMS, EmbeddingsRequest

    class Unread(list[int]):
        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("it is read")

    with pytest.raises(ValidationError, match="it has 8193 elements, at most 8192"):
        EmbeddingsRequest.model_validate({"input": [Unread([1])] * (MOST_ITEMS + 1)})
    flat = EmbeddingsRequest.model_validate({"input": [1] * 100_000})
    assert [len(item) for item in flat.input] == [100_000]
