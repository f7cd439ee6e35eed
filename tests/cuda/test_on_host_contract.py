"""What is executed on the CPU is what nvcc compiles, but for one file of primitives."""

from __future__ import annotations

import re

from tests.cuda.kernel_image import DEVICE_CODE, ON_HOST

PRIMITIVES = DEVICE_CODE / "primitives.cuh"
HEADERS = sorted(DEVICE_CODE.glob("*.cuh"))


def code(text: str) -> str:
    """Text without comments."""
    return re.sub(r"//[^\n]*", "", text)


def test_one_header_differs_on_the_host():
    assert PRIMITIVES in HEADERS
    for header in HEADERS:
        text = code(header.read_text(encoding="utf-8"))
        if header != PRIMITIVES:
            assert "IBERT_ON_HOST" not in text, header
            assert not re.search(r"\basm\b", text), f"inline PTX in {header}"
    text = code(PRIMITIVES.read_text(encoding="utf-8"))
    assert len(re.findall(r"#\s*ifdef IBERT_ON_HOST", text)) == 1
    common = text.split("#endif", text.count("#endif"))[-1]
    assert not re.search(r"\basm\b", common)


def test_every_primitive_is_there_on_the_host():
    text = code(PRIMITIVES.read_text(encoding="utf-8"))
    device = text[text.index("#else") : text.rindex("asm volatile")]
    functions = r"__forceinline__\s+\w+\s+(\w+)\s*\("
    names = set(re.findall(functions, device)) - {"m8n8k16", "m16n8k16", "m16n8k32"}
    assert {"ldmatrix_x4", "mma_16x8x32", "copy16_async", "store_shared16"} <= names
    host = code((ON_HOST / "primitives.h").read_text(encoding="utf-8"))
    missing = {name for name in names if not re.search(rf"\b{name}\b\s*[(,]", host)}
    assert not missing
