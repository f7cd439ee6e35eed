"""Any bytes: the ids are those of the replaced text, and nothing is read or written beyond."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.c_tokenizer.text import c_tokenizer, check_same, header_alone
from tests.processes import run_captured

from .forms import host_of, tokenizer_of, word_piece
from .test_equal import FAMILIES
from .test_expression import FORMS

ALL = {**FAMILIES, **FORMS}
_FLAGS = ("-std=c99", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_bytes_that_are_no_text_are_replaced() -> None:
    tokenizer = tokenizer_of(word_piece())
    host, rng = host_of(tokenizer), random.Random(5)
    texts = [b"\xf0\x9f\x98", b"\xe0\x80\x80", b"\xed\xa0\x80a", b"\xf4\x90\x80\x80", b"c\xc3"]
    texts += [bytes(rng.choices(range(256), k=rng.randrange(24))) for _ in range(500)]
    high = [0x20, 0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC3, 0xE0, 0xE1, 0xED, 0xF0, 0xF4, 0xF5]
    texts += [bytes(rng.choices(high, k=rng.randrange(12))) for _ in range(1000)]
    replaced = [text.decode(errors="replace") for text in texts]
    for text, same, wanted in zip(texts, replaced, tokenizer.ids_of(replaced), strict=True):
        check_same(same, host.ids(text, len(wanted)), wanted)


@pytest.mark.parametrize(
    ("family", "side", "calls"),
    [
        ("uncased", "right", 3_000),
        pytest.param("uncased", "left", 3_000, marks=pytest.mark.slow),
        *(pytest.param(family, "right", 20_000, marks=pytest.mark.slow) for family in ALL),
        *(pytest.param(family, "right", 200_000, marks=pytest.mark.record) for family in ALL),
    ],
)
def test_random_bytes_under_sanitisers(family: str, side: str, calls: int, tmp_path: Path) -> None:
    form = c_tokenizer(tokenizer_of(ALL[family](), truncation_side=side), pairs=True)
    (tmp_path / "ibert_model.h").write_text(header_alone(form))
    (tmp_path / "tokenizer.c").write_text(form.source)
    shutil.copy(Path(__file__).with_name("fuzz.c"), tmp_path)
    built = ["gcc", *_FLAGS, "-DPAIRS", "tokenizer.c", "fuzz.c", "-o", "fuzz"]
    subprocess.run(built, cwd=tmp_path, check=True)
    done = run_captured(["./fuzz", "7", str(calls)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > calls
