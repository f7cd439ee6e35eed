"""A compiled model with its tokenizer: text in, vectors out."""

from __future__ import annotations

import ctypes
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import ibert_tvm as ibert
from ibert_tvm.c_tokenizer.text import c_tokenizer, compared_probes
from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import PROBES
from ibert_tvm.targets.bare_metal.package_audit import audit_package
from tests.arm.packages import reference, small_bert
from tests.arm.tools import board, needs
from tests.processes import run_captured
from tests.snapshots import Messages
from tests.targets.aot.c_interface import Caller, pointers, sizes
from tests.targets.web.packages import tiny_reranker

from .forms import TEXTS as PROBED
from .forms import tokenizer_of, unigram, word_piece

SHAPES = [(1, 24), (1, 8)]
TEXTS = ("The cat", "façade, Straße and [MASK] 你好", "word " * 40, "")


@pytest.fixture(scope="module")
def quantized() -> QuantizedModel:
    files = {"tokenizer.json": json.dumps(word_piece()).encode()}
    return replace(small_bert(), tokenizer=files)


def _expected(quantized: QuantizedModel, text: str | tuple[str, str]) -> np.ndarray:
    tokens = Tokenizer(quantized.tokenizer).encode([text], 24, pad_to=24, allow_empty=True)
    return reference(quantized, tokens.inputs(quantized.input_names))[0]


def test_a_library_takes_text(quantized: QuantizedModel, tmp_path: Path) -> None:
    compiled = ibert.compile(quantized, "host", SHAPES, runtime="none", tokenizer=True)
    assert compiled.report["text"]["probes"] > 10
    assert compiled.bare is not None
    caller = Caller(compiled.export(tmp_path / "model.so"), max(compiled.bare.arena_bytes.values()))
    header = (tmp_path / "model.h").read_text()
    (fixed,) = re.findall(r"TEXT_WORK_BYTES \((\d+) \+", header)
    (word,) = re.findall(r"TOKENIZER_WORK_BYTES (\d+)", header)
    work = np.zeros(int(fixed) + int(word), np.uint8)
    outputs = caller.outputs(1, 24)

    def embed(text: str, nbytes: int = work.nbytes, context: Any = caller.context) -> int:
        place = None if context is None else ctypes.byref(context)
        data = text.encode()
        memory = (ctypes.c_void_p(work.ctypes.data), ctypes.c_size_t(nbytes))
        size = ctypes.c_size_t(len(data))
        return int(
            caller.library.ibert_embed_text(
                place, data, size, *memory, pointers(outputs), sizes(outputs)
            )
        )

    for text in TEXTS:
        assert embed(text) == 0
        np.testing.assert_array_equal(outputs[0], _expected(quantized, text))
    assert embed("a", work.nbytes - 1) == 15
    assert embed("a", context=None) == 1


@pytest.mark.slow
def test_a_library_takes_pairs(tmp_path: Path) -> None:
    quantized = tiny_reranker()
    compiled = ibert.compile(quantized, "host", SHAPES, runtime="none", tokenizer=True)
    assert compiled.report["text"]["probes"] == len(PROBES)
    assert compiled.bare is not None
    caller = Caller(compiled.export(tmp_path / "model.so"), max(compiled.bare.arena_bytes.values()))
    work = np.zeros(2**16, np.uint8)
    outputs = caller.outputs(1, 24)
    place = ctypes.byref(caller.context)
    memory = (ctypes.c_void_p(work.ctypes.data), ctypes.c_size_t(work.nbytes))
    for pair in (("The cat", "façade"), ("a cat " * 9, "the " * 30), ("", "")):
        texts = [part for text in pair for part in _bytes(text)]
        assert not caller.library.ibert_embed_pair(
            place, *texts, *memory, pointers(outputs), sizes(outputs)
        )
        np.testing.assert_array_equal(outputs[0], _expected(quantized, pair))
    nothing = (None, ctypes.c_size_t(1))
    status = caller.library.ibert_embed_pair(
        place, *_bytes("a"), *nothing, *memory, pointers(outputs), sizes(outputs)
    )
    assert status == 1


def _bytes(text: str) -> tuple[bytes, ctypes.c_size_t]:
    return text.encode(), ctypes.c_size_t(len(text.encode()))


def test_answers_need_more_than_ids(quantized: QuantizedModel, messages: Messages) -> None:
    model = replace(quantized, info=replace(quantized.info, head="question_answering"))
    with messages.raises(UsageError):
        ibert.compile(model, "host", SHAPES, runtime="none", tokenizer=True)


def test_a_probe_may_be_one_word() -> None:
    pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer = tokenizer_of(unigram(pre_tokenizer))
    assert compared_probes(c_tokenizer(tokenizer), tokenizer) == len(PROBED)


@pytest.mark.slow
@pytest.mark.parametrize("second", ["", "A cat?"])
def test_firmware_takes_text(quantized: QuantizedModel, tmp_path: Path, second: str) -> None:
    board("cortex-m3")
    quantized = tiny_reranker() if second else quantized
    needs("make", "qemu-system-arm")
    compiled = ibert.compile(quantized, "cortex-m3", [(1, 24)], prefix="ibert", tokenizer=True)
    package = compiled.export(tmp_path / "package")
    text = "The naïve cat, 你好!"
    firmware = Path(__file__).resolve().parents[2] / "examples" / "firmware"
    settings = [f"BUILD={tmp_path}/build", "TARGET=cortex-m3", f"PACKAGE={package}", f"TEXT={text}"]
    settings += [f"SECOND={second}"] if second else []
    made = run_captured(["make", "-C", str(firmware), *settings, "run"])
    assert made.returncode == 0, made.stderr
    (checksum,) = re.findall(r"crc32 (0x[0-9a-f]+)", made.stdout)
    expected = _expected(quantized, (text, second) if second else text)
    assert int(checksum, 16) == zlib.crc32(expected.tobytes())
    document = json.loads((package / "ibert_model.json").read_text())
    assert document["text"]["table_bytes"] < document["memory"]["flash"]["constants"]
    audit = audit_package(package, document, compiled.target, _folder(tmp_path / "audit"))
    assert audit.findings == ()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("case", ["no batch of 1", "TVM's runtime", "no tokenizer"])
def test_where_there_can_be_none(case: str, quantized: QuantizedModel, messages: Messages) -> None:
    model = replace(quantized, tokenizer={}) if case == "no tokenizer" else quantized
    runtime = "tvm" if case == "TVM's runtime" else "none"
    with messages.raises(UsageError):
        ibert.compile(model, "host", [(2, 16)], runtime=runtime, tokenizer=True)
