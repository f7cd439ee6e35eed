"""What `ibert run` says of logits: a class where there are several, a score where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ibert_tvm.cli.run import _labels


@pytest.mark.parametrize(
    ("names", "values", "labels"),
    [
        ({0: "calm", 1: "wild"}, [[1, 2], [3, 0]], ["wild", "calm"]),
        ({0: "LABEL_0"}, [[5], [-5]], []),
    ],
)
def test_one_logit_is_a_score(names: dict[int, str], values: Any, labels: list[str]) -> None:
    outputs = [SimpleNamespace(kind="logits", name="logits")]
    metadata = SimpleNamespace(info=SimpleNamespace(id2label=names), outputs=outputs)
    library: Any = SimpleNamespace(metadata=metadata)
    results: Any = {"logits": SimpleNamespace(values=np.array(values))}
    assert _labels(library, results) == labels
