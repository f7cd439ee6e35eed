"""What the audit of a module finds: floats wherever they can be, and what a page is asked for."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.common.errors import TargetError
from ibert_tvm.targets import get_target
from ibert_tvm.targets.web.audit import Module, audit_module, stack_bytes
from ibert_tvm.targets.web.opcodes import PLAIN, PREFIXES
from tests.arm.tools import needs

EXPORTS = ("run",)
HEADER = b"\0asm\1\0\0\0"
TYPE, IMPORT, FUNCTION, MEMORY, GLOBAL, EXPORT, START, CODE = 1, 2, 3, 5, 6, 7, 8, 10
SECTIONS = {
    TYPE: bytes([1, 0x60, 0, 1, 0x7F]),
    IMPORT: bytes([1, 3, *b"env", 6, *b"memory", 2, 3, 2, 4]),
    FUNCTION: bytes([1, 0]),
    EXPORT: bytes([1, 3, *b"run", 0, 0]),
}
LLVM_NAMES = {
    "v128.load8x8": "i16x8.load8x8",
    "v128.load16x4": "i32x4.load16x4",
    "v128.load32x2": "i64x2.load32x2",
}
"""As LLVM's assembler has them."""


def module(code: bytes = b"\x41\0", local: bytes = b"\0", **changed: bytes) -> bytes:
    """A module of one function that ends behind `code`; `changed` are sections by their names."""
    body = local + code + b"\x0b"
    sections = {**SECTIONS, CODE: bytes([1, len(body)]) + body}
    sections |= {globals()[name]: content for name, content in changed.items()}
    return HEADER + b"".join(
        bytes([number, len(content)]) + content for number, content in sorted(sections.items())
    )


def findings(content: bytes, folder: Path) -> tuple[str, ...]:
    path = folder / "model.wasm"
    path.write_bytes(content)
    return audit_module(path, get_target("wasm32"), EXPORTS).findings


def test_a_module_of_integers_has_no_findings(tmp_path: Path) -> None:
    assert findings(module(), tmp_path) == ()
    vectors = b"\xfd\x0c" + bytes(16) + b"\xfd\x1b\0"  # v128.const, i32x4.extract_lane
    assert findings(module(vectors, b"\1\1\x7b"), tmp_path) == ()
    atomics = b"\x41\0\xfe\x10\2\0\xfe\3\0"  # i32.atomic.load, atomic.fence
    assert findings(module(atomics, START=b"\0"), tmp_path) == ()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (module(b"\x43" + bytes(4) + b"\xa8"), "function 0 at 0x1: f32.const 00000000"),
        (module(b"\x41\0\x2a\2\0\xbc"), "function 0 at 0x3: f32.load align=4 offset=0"),
        (module(b"\xfd\xe4\1"), "function 0 at 0x1: f32x4.add"),
        (module(b"\xfc\0"), "function 0 at 0x1: i32.trunc_sat_f32_s"),
        (module(b"\xfd\x85\2"), "function 0 at 0x1: no instruction 0xfd 0x105"),  # relaxed madd
        (module(b"\x06\x40"), "function 0 at 0x1: no instruction 0x6"),
        (module(local=b"\1\1\x7d"), "a local of function 0 has a value of type f32"),
        (module(TYPE=bytes([1, 0x60, 1, 0x7C, 1, 0x7F])), "type 0 has a value of type f64"),
        (
            module(GLOBAL=bytes([1, 0x7D, 0, 0x43, 0, 0, 0, 0, 0x0B])),
            "global 0 has a value of type f32",
        ),
        (
            module(IMPORT=bytes([1, 3, *b"env", 4, *b"sinf", 0, 0])),
            "it imports the function env.sinf",
        ),
        (module(b"\xfe\4"), "function 0 at 0x1: no instruction 0xfe 0x4"),
        (module(MEMORY=bytes([1, 0, 2])), "there is a section of kind memory"),
        (
            module(IMPORT=bytes([1, 3, *b"env", 6, *b"memory", 2, 1, 2, 4])),
            "its memory is not one that workers can share",
        ),
        (
            module(EXPORT=bytes([2, 6, *b"memory", 2, 0, 3, *b"run", 0, 0])),
            "the export memory is missing or not expected",
        ),
        (module(CODE=b"\0"), "there is no code"),
    ],
)
def test_what_compiled_models_do_not_have(content: bytes, found: str, tmp_path: Path) -> None:
    assert found in findings(content, tmp_path)


def test_frames_of_a_chain_of_calls_add_up() -> None:
    def frame(size: bytes) -> bytes:
        code = b"\0\x23\0\x41" + size + b"\x6b\x22\0\x0b"  # the stack's pointer, less a number
        return bytes([len(code)]) + code

    frames = [b"\xc0\0"] * 15 + [b"\x80\x80\x04"] + [b"\x20"] * 9  # 64, 65536, 32
    code = bytes([len(frames)]) + b"".join(map(frame, frames))
    assert len(code) < 300
    sections = {**SECTIONS, FUNCTION: bytes([len(frames), *[0] * len(frames)])}
    content = HEADER + b"".join(
        bytes([number, len(part)]) + part for number, part in sorted(sections.items())
    )
    content += bytes([CODE, len(code) & 0x7F | 0x80, len(code) >> 7]) + code
    assert stack_bytes(Module(content)) == 65536 + 15 * 64
    assert stack_bytes(Module(module())) == 0


def test_a_damaged_module_is_refused_or_found(tmp_path: Path) -> None:
    whole = module(b"\xfd\x0c" + bytes(16) + b"\xfd\x1b\0")
    for end in range(len(whole)):
        with contextlib.suppress(TargetError):
            assert findings(whole[:end], tmp_path)
    for place in range(len(whole)):
        for value in (0, 0x7F, 0x80, 0xFF):
            with contextlib.suppress(TargetError):
                findings(whole[:place] + bytes([value]) + whole[place + 1 :], tmp_path)


def test_instructions_have_the_numbers_that_llvm_gives_them() -> None:
    needs("llvm-mc-14")
    ours: dict[str, str] = {}
    for prefix, table in {None: PLAIN, **PREFIXES}.items():
        for number, (name, immediate) in table.items():
            encoded = [number] if prefix is None else [prefix, *leb128(number)]
            operands = OPERANDS.get(immediate)
            base, _, sign = name.rpartition("_")
            llvm = f"{LLVM_NAMES[base]}_{sign}" if base in LLVM_NAMES else name
            if operands is not None and llvm not in UNKNOWN_TO_LLVM_14:
                ours[f"{llvm}{operands}"] = ",".join(f"0x{byte:02x}" for byte in encoded)
    text = "f:\n    .functype f () -> ()\n" + "\n".join(ours) + "\nend_function\n"
    features = "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint,+atomics"
    command = ["llvm-mc-14", "-triple=wasm32", f"-mattr={features}", "--no-type-check"]
    done = subprocess.run(
        [*command, "-show-encoding"], input=text, capture_output=True, text=True, check=True
    )
    theirs = re.findall(r"# encoding: \[(.*)\]", done.stdout)
    assert len(ours) > 400
    wrong = [
        (name, code, given)
        for (name, code), given in zip(ours.items(), theirs, strict=False)
        if not given.startswith(code)
    ]
    assert wrong == []


OPERANDS = {
    "none": "",
    "index": " 0",
    "two": " 0, 0",
    "address": " 0",
    "lane": " 0, 0",
    "long": " 5",
    "byte": " 0",
}
UNKNOWN_TO_LLVM_14 = {
    *("else", "end", "call_indirect", "select", "select_typed", "f32x4.demote_f64x2_zero"),
    *("i32x4.trunc_sat_f64x2_s_zero", "i32x4.trunc_sat_f64x2_u_zero", "atomic.fence"),
}


def leb128(number: int) -> list[int]:
    return [number] if number < 128 else [number & 0x7F | 0x80, *leb128(number >> 7)]
