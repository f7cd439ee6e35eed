"""Bounds of the stack, read off disassembly."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.targets import get_target
from ibert_tvm.targets.bare_metal import verification
from ibert_tvm.targets.bare_metal.stack import StackUse, frame_bytes, stack_use
from ibert_tvm.targets.library_audit import parse
from ibert_tvm.targets.machines.code import Function, StackError, StackRules
from tests.snapshots import Messages

RISCV = verification.bare_metal(get_target("rv32imc")).stack
RULES = verification.bare_metal(get_target("cortex-m4")).stack


def _functions(text: str) -> list[Function]:
    """Functions of a listing whose columns are separated by blanks."""
    lines = []
    for number, line in enumerate(text.strip().splitlines()):
        if line.endswith(":"):
            lines.append(line)
        else:
            mnemonic, _, operands = line.strip().partition(" ")
            lines.append(f"    {0x100 + 2 * number:x}:\t{mnemonic}\t{operands}")
    return list(parse("\n".join(lines)))


def _frame(*body: str, rules: StackRules = RULES) -> int:
    (function,) = _functions("\n".join(["00000100 <f>:", *body]))
    return frame_bytes(function, rules)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("push {r4, lr}", 8),
        ("push.w {r4, r5, r6, r7, r8, r9, r10, r11, lr}", 36),
        ("stmdb sp!, {r4, r5, r6, lr}", 16),
        ("vpush {d8-d15}", 64),
        ("vpush {s16-s19}", 16),
        ("str.w lr, [sp, #-4]!", 4),
        ("strd r6, r7, [sp, #-8]!", 8),
        ("sub sp, #508", 508),
        ("sub.w sp, sp, #1024", 1024),
        ("subw sp, sp, #1036", 1036),
        ("add sp, #508", 0),
        ("add sp, sp, #16", 0),
        ("ldr r0, [sp, #4]", 0),
        ("stmdb r0!, {r4, r5}", 0),
        ("mov sp, r7", 0),
    ],
)
def test_frame_of_one_instruction(instruction: str, expected: int) -> None:
    assert _frame(instruction) == expected


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        (("addi sp,sp,-64",), 64),
        (("add sp,sp,-32",), 32),  # as Debian's binutils 2.40 call it
        (("add sp,sp,32",), 0),
        (("sw ra,28(sp)", "lw ra,28(sp)", "mv sp,s0", "addi sp,s0,-16"), 0),
        (("and sp,sp,-64",), 64),
        (("li t1,-4096", "addi t1,t1,256", "add sp,sp,t1"), 3840),
        (("lui t0,0x1", "add t0,t0,-16", "sub sp,sp,t0"), 4080),
        (("lui a0,0xfffff", "mv a1,a0", "add sp,sp,a0"), 4096),
    ],
)
def test_frames_of_riscv(instructions: tuple[str, ...], expected: int) -> None:
    assert _frame(*instructions, rules=RISCV) == expected


@pytest.mark.parametrize(
    "body", [("sub sp,sp,a0",), ("lw t0,0(a0)", "sub sp,sp,t0"), ("srl sp,sp,1",)]
)
def test_a_stack_pointer_of_riscv_that_is_computed_has_no_bound(
    body: tuple[str, ...], messages: Messages
) -> None:
    with messages.raises(StackError):
        _frame(*body, rules=RISCV)


def test_labels_within_a_function_are_part_of_it() -> None:
    """Or what is called behind one would not be counted."""
    (function,) = _functions("00000100 <f>:\naddi sp,sp,-16\n00000104 <.L2>:\naddi sp,sp,-32")
    assert frame_bytes(function, RISCV) == 48


def test_frames_add_up() -> None:
    assert _frame("push {r4, r5, lr}", "sub sp, #20", "add sp, #20", "pop {r4, r5, pc}") == 32


def test_a_large_frame_of_armv6m_is_a_negative_literal() -> None:
    text = """\
00000100 <f>:
    100:\tpush\t{r7, lr}
    102:\tldr\tr7, [pc, #4]\t@ (108 <f+0x8>)
    104:\tadd\tsp, r7
    106:\tbx\tlr
    108:\t.word\t0xfffff800
"""
    (function,) = parse(text)
    assert frame_bytes(function, RULES) == 8 + 2048


def test_a_frame_from_a_moved_constant() -> None:
    assert _frame("mov.w r12, #4096", "sub.w sp, sp, r12") == 4096


def test_rounding_the_stack_pointer_down_counts() -> None:
    assert _frame("mov r4, sp", "bfc r4, #0, #6", "mov sp, r4") == 64
    assert _frame("mov r4, sp", "lsrs r4, r4, #5", "lsls r4, r4, #5", "mov sp, r4") == 32


@pytest.mark.parametrize("body", [("sub.w sp, sp, r3",), ("ldr r3, [r0, #4]", "sub.w sp, sp, r3")])
def test_a_frame_that_is_not_in_the_code_is_refused(
    body: tuple[str, ...], messages: Messages
) -> None:
    with messages.raises(StackError):
        _frame(*body)


GRAPH = Path(__file__).with_name("call_graph.txt").read_text(encoding="utf-8")


def test_the_longest_way_down_the_call_graph() -> None:
    functions = list(parse(GRAPH))
    use = stack_use(functions, ["entry"], RULES, {"entry": []})
    assert use == StackUse(8 + 40 + 8, ("entry", "large", "small"))
    use = stack_use(functions, ["entry"], RULES, {"entry": ["pointed", "absent"]})
    assert use == StackUse(8 + 100, ("entry", "pointed"))


def test_a_pointer_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StackError, match=r"it calls through a pointer \(r3\)"):
        stack_use(parse(GRAPH), ["entry"], RULES)


def test_recursion_is_refused() -> None:
    functions = _functions("00000100 <f>:\npush {lr}\nbl 100 <f>")
    with pytest.raises(StackError, match="it calls itself"):
        stack_use(functions, ["f"], RULES)


def test_frames_of_the_sources_own_limits() -> None:
    functions = list(parse(GRAPH))
    limits = {"small": 64, "large": 24}
    use = stack_use(functions, ["entry"], RULES, {"entry": []}, limits)
    assert use == StackUse(8 + 40 + 64, ("entry", "large", "small"))


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("push r12", 16),
        ("sub rsp,0x98", 8 + 0x98),
        ("add rsp,0xffffffffffffff80", 8 + 128),
        ("and rsp,0xfffffffffffffff0", 8 + 16),
        ("add rsp,0x98", 8),
        ("mov QWORD PTR [rsp+0x8],rax", 8),
    ],
)
def test_frames_of_x86_64_with_the_address_to_return_to(instruction: str, expected: int) -> None:
    assert _frame(instruction, rules=verification.bare_metal(get_target("c99")).stack) == expected
