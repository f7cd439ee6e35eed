"""What is found out about code points, where Python's Unicode says the same."""

from __future__ import annotations

import json
import unicodedata

from ibert_tvm.c_tokenizer.code_points import combining_classes, component


def test_classes_of_marks() -> None:
    normalize = component("normalizer", json.dumps({"type": "NFD"})).normalize_str
    found = combining_classes(normalize)
    assert len(found) > 700
    assert found == {code: unicodedata.combining(chr(code)) for code in found}
