"""Token types of pairs, as transformers feeds them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers

from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
from tests.runtime.conftest import VOCABULARY


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["input_ids", "attention_mask"], [0] * 6),
        (["input_ids", "token_type_ids", "attention_mask"], [0, 0, 0, 1, 1, 1]),
        (None, [0, 0, 0, 1, 1, 1]),
    ],
)
def test_types_are_zeros_where_the_inputs_leave_them_out(
    tmp_path: Path, names: list[str] | None, expected: list[int]
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(VOCABULARY)}).save_pretrained(
        tmp_path
    )
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings.pop("model_input_names", None)
    file.write_text(json.dumps(settings | ({} if names is None else {"model_input_names": names})))
    pair = ("hello", "big world")
    batch = Tokenizer(tokenizer_files(tmp_path)).encode([pair], 16)
    source = transformers.AutoTokenizer.from_pretrained(tmp_path)(*pair)
    assert batch.input_ids[0].tolist() == source["input_ids"]
    assert batch.token_type_ids[0].tolist() == expected
    given = source.get("token_type_ids", np.zeros(len(expected), int).tolist())
    assert batch.token_type_ids[0].tolist() == given
