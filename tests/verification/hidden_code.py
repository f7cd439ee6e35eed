"""Libraries whose floating point a look at sections from start to end does not show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hidden:
    """A library, linked from assembly.

    Attributes
    ----------
    target
        A target whose tools are used.
    source
        Assembly; behind it stand the directives of `ENDS`.
    finding
        What the audit says, or a part of it.
    flags
        Of the linker.
    sections
        Whether its header leads to its sections.
    """

    target: str
    source: str
    finding: str
    flags: tuple[str, ...] = ()
    sections: bool = True


_ONE_SEGMENT = ("-Wl,-z,noseparate-code",)
_X86 = ".intel_syntax noprefix\n.text\n.globl f\n.type f, @function\n"
_X86_FLOAT = "f: ret\n.section .rodata\ng: addss xmm0, xmm1\nret\n"
# addss xmm0, xmm3; ret
_IN_IMMEDIATE = "f: i: mov eax, 0xc3580ff3\nret\n"
_A64 = ".text\n.globl f\n.type f, %function\n"
_A32 = ".arm\n.text\n.globl f\n.type f, %function\n"
_RV32 = ".option arch, +zicsr\n.option norelax\n.text\n.globl f\n.type f, @function\n"
_COMPUTED = "it calls the operating system or jumps to a computed address"
_T32 = ".syntax unified\n.thumb\n.text\n.globl f\n.type f, %function\n.thumb_func\n"

HIDDEN = {
    "data in an executable segment": Hidden("x86-64", _X86 + _X86_FLOAT, "g at 0x", _ONE_SEGMENT),
    "no sections": Hidden("x86-64", _X86 + _X86_FLOAT, "addss", _ONE_SEGMENT, sections=False),
    "a writable segment": Hidden(
        "x86-64", _X86 + "f: ret\n", "can be both written and executed", ("-Wl,-N",)
    ),
    "an executable stack": Hidden(
        "x86-64", _X86 + "f: ret\n", "the stack of a process", ("-Wl,-z,execstack",)
    ),
    "code that the loader changes": Hidden(
        "x86-64",
        _X86 + "f: ret\n.balign 8\n.quad f\n",
        "the loader changes its code",
        ("-Wl,-z,notext",),
    ),
    "a jump into an immediate": Hidden(
        "x86-64", _X86 + _IN_IMMEDIATE + "g: jmp i+1\n", "g at 0x1006: it jumps to what is no start"
    ),
    "a call into an immediate": Hidden(
        "x86-64", _X86 + _IN_IMMEDIATE + "g: call i+1\nret\n", "it jumps to what is no start"
    ),
    "a jump to data": Hidden("x86-64", _X86 + "f: jmp g\n.section .rodata\ng: ret\n", "no start"),
    "a table into an immediate": Hidden(
        "x86-64",
        _X86 + _IN_IMMEDIATE + '.section .data.rel.ro,"aw"\n.quad i+1\n',
        "f at 0x1001: the pointer at 0x",
    ),
    "a start-up function in an immediate": Hidden(
        "x86-64",
        _X86 + _IN_IMMEDIATE + '.section .init_array,"aw"\n.quad i+1\n',
        "is no start of an instruction",
    ),
    "a symbol in an immediate": Hidden(
        "x86-64",
        _X86 + _IN_IMMEDIATE + ".globl g\n.type g, @function\n.set g, i+1\n",
        "g at 0x1001: addss xmm0,xmm3",
    ),
    "an address in an immediate": Hidden(
        "x86-64", _X86 + _IN_IMMEDIATE + "lea rax, [rip+i+1]\njmp rax\n", "in the middle"
    ),
    "a computed jump": Hidden(
        "x86-64",
        _X86 + _IN_IMMEDIATE + "g: lea rax, [rip+i]\ninc rax\njmp rax\n",
        "it jumps to a computed address: jmp rax",
    ),
    "a computed jump on one of two ways": Hidden(
        "x86-64",
        _X86 + "f: mov rax, [rdi]\ntest rsi, rsi\nje 1f\nadd rax, 1\n1: call rax\nret\n",
        "it jumps to a computed address: call rax",
    ),
    "a computed argument": Hidden(
        "x86-64",
        _X86 + "f: i: lea rdi, [rip+i]\nadd rdi, 3\ncall g\nret\ng: jmp rdi\n",
        "it jumps to a computed address: jmp rdi",
    ),
    "a computed result": Hidden(
        "x86-64",
        _X86 + "f: i: call g\njmp rax\ng: lea rax, [rip+i]\ninc rax\nret\n",
        "it jumps to a computed address: jmp rax",
    ),
    "a computed return": Hidden(
        "x86-64", _X86 + "f: i: lea rax, [rip+i]\ninc rax\npush rax\nret\n", "put on the stack"
    ),
    "a branch whose length processors read differently": Hidden(
        "x86-64", _X86 + "f: .byte 0x66, 0x0f, 0x84, 0, 0, 0x90, 0x90\nret\n", "read it alike"
    ),
    "a far jump": Hidden("x86-64", _X86 + "f: jmp FWORD PTR [rdi]\n", "or jumps to a computed"),
    "symbols in an old table": Hidden(
        "x86-64", _X86 + "f: ret\n", "of the old kind alone", ("-Wl,--hash-style=sysv",)
    ),
    "an auxiliary library": Hidden(
        "x86-64", _X86 + "f: ret\n", "it loads another library", ("-Wl,-f,other.so",)
    ),
    "a system call": Hidden("x86-64", _X86 + "f: syscall\nret\n", "the operating system"),
    "a call that makes code": Hidden(
        "x86-64",
        _X86 + "f: jmp mprotect@PLT\n",
        "mprotect: a function of another library that compiled models do not call",
    ),
    "64-bit data in an executable segment": Hidden(
        "rpi4",
        _A64 + "f: ret\n.section .rodata\ng: fadd s0, s0, s1\nret\n",
        "g at 0x",
        _ONE_SEGMENT,
    ),
    "64-bit data in a text section": Hidden(
        "rpi4", _A64 + "f: ret\n.word 0x1e212800\n", "fadd s0, s0, s1"
    ),
    "a computed 64-bit jump": Hidden(
        "rpi4", _A64 + "f: add x8, x8, x9\nbr x8\n", "it jumps to a computed address: br x8"
    ),
    "a computed 64-bit return": Hidden(
        "rpi4", _A64 + "f: eor x30, x30, x1\nret\n", "it jumps to a computed address: ret"
    ),
    "32-bit data in an executable segment": Hidden(
        "armv7-neon",
        _A32 + "f: bx lr\n.section .rodata\n.word 0xee300a20\n",
        "data that nothing reads as a constant: 0xee300a20",
        _ONE_SEGMENT,
    ),
    "32-bit data in a text section": Hidden(
        "armv7-neon", _A32 + "f: bx lr\n.word 0xee300a20\n", "data that nothing reads"
    ),
    "a jump to a constant": Hidden(
        "armv7-neon",
        _A32 + "f: ldr r0, g\nb g\ng: .word 0xee300a20\n",
        "it jumps to what is no start",
    ),
    "code that goes on in a constant": Hidden(
        "armv7-neon",
        _A32 + "f: ldr r0, g\ng: .word 0xee300a20\nbx lr\n",
        "it goes on where there is no instruction",
    ),
    "ARM code entered as Thumb": Hidden(
        "armv7-neon",
        _A32 + 'f: bx lr\ng: bx lr\n.section .data.rel.ro,"aw"\n.word g+1\n',
        "is no start of an instruction",
    ),
    "a computed 32-bit jump": Hidden(
        "armv7-neon", _A32 + "f: add r3, r3, #1\nbx r3\n", "it jumps to a computed address: bx r3"
    ),
    "a computed jump if one condition holds": Hidden(
        "armv7-neon",
        _A32 + "f: add r3, r3, #1\ncmp r0, #0\nldreq r3, [r1]\nbx r3\n",
        "it jumps to a computed address: bx r3",
    ),
    "a computed return behind a conditional one": Hidden(
        "armv7-neon",
        _A32 + "f: add lr, lr, #4\ncmp r0, #0\npopeq {r4, pc}\nbx lr\n",
        "it jumps to a computed address: bx lr",
    ),
    "a computed counter": Hidden(
        "armv7-neon", _A32 + "f: add pc, r0, r1\n", "or jumps to a computed address"
    ),
    "a computed Thumb jump": Hidden(
        "armv7-neon", _T32 + "f: adds r3, #2\nbx r3\n", "it jumps to a computed address: bx r3"
    ),
    "data in the image of a microcontroller": Hidden(
        "cortex-m4", _T32 + "f: bx lr\n.balign 4\n.word 0xee300a20\n", "data that nothing reads"
    ),
    "a computed jump of a microcontroller": Hidden(
        "cortex-m4", _T32 + "f: adds r3, #2\nbx r3\n", "it jumps to a computed address: bx r3"
    ),
    "a computed jump of RISC-V": Hidden(
        "rv32imc", _RV32 + "f: addi a0, a0, 2\njr a0\n", "it jumps to a computed address: jr"
    ),
    "a jump of RISC-V behind an address": Hidden("rv32imc", _RV32 + "f: jr 2(a0)\n", _COMPUTED),
    "a return of RISC-V by another register": Hidden(
        "rv32imc", _RV32 + "f: jal t0, f\n", _COMPUTED
    ),
    "a jump of RISC-V into an immediate": Hidden(
        "rv32imc", _RV32 + "f: lui a0, 0x12345\nj f+2\n", "it jumps to what is no start"
    ),
    "a pointer of RISC-V with half of its bits": Hidden(
        "rv64gc", _RV32 + "f: lw a1, 0(a0)\njr a1\n", "it jumps to a computed address: jr"
    ),
    "an address of RISC-V within an instruction": Hidden(
        "rv32imc", _RV32 + "f: lui a0, %hi(f+2)\naddi a0, a0, %lo(f+2)\njr a0\n", "computed address"
    ),
    "another upper part of an address of RISC-V": Hidden(
        "rv32imc",
        _RV32 + "f: beqz a1, g\nlui a0, 0x20\nj h\ng: lui a0, 0x10\nh: addi a0, a0, 2\njr a0\n",
        "it jumps to a computed address: jr",
    ),
    "data in the code of RISC-V": Hidden(
        "rv32imc", _RV32 + "f: ret\n.balign 4\n.word 0xffffffff\n", "no instruction"
    ),
    "interrupts of RISC-V": Hidden("rv32imc", _RV32 + "f: csrw mtvec, a0\nret\n", _COMPUTED),
    "vectors on a microcontroller of RISC-V": Hidden(
        "rv32imc",
        _RV32 + "f: .insn 0x02841457\nret\n",
        "no instruction",  # vfadd.vv v8, v8, v8
    ),
    "floats in vectors of RISC-V": Hidden(
        "rv64gcv", _RV32 + "f: vfwcvt.f.x.v v8, v4\nret\n", "vfwcvt.f.x.v v8,v4"
    ),
    "an interrupted loop of RISC-V's vectors": Hidden(
        "rv64gcv", _RV32 + "f: csrr a0, vlenb\ncsrw vstart, a0\nret\n", "csrw vstart,a0"
    ),
    "how RISC-V rounds floats": Hidden("rv64gcv", _RV32 + "f: csrwi fcsr, 1\nret\n", "fcsr"),
    "a constant address that no linker knows": Hidden(
        "cortex-m4",
        _T32 + "f: ldr r3, g\nbx r3\n.balign 4\ng: .word 0x10003\n",
        "it jumps to a computed address: bx r3",
    ),
    "a table into the middle of an instruction": Hidden(
        "cortex-m4",
        _T32 + "f: ldr.w r0, [r1]\nbx lr\n.section .data\n.word f+2\n",
        "is no start of an instruction",
    ),
    "a call that returns to a constant": Hidden(
        "cortex-m0",
        _T32 + "f: push {lr}\nldr r3, c\nbl g\n.balign 4\nc: .word 0x4770bf00\n"
        ".thumb_func\ng: bx lr\n",
        "it goes on where there is no instruction",
    ),
    "a call that returns to a constant by the stack": Hidden(
        "cortex-m0",
        _T32 + "f: push {lr}\nldr r3, c\nbl g\n.balign 4\nc: .word 0x4770bf00\n"
        ".thumb_func\ng: push {r3, lr}\nmovs r0, #0\npop {r3, pc}\n",
        "it goes on where there is no instruction",
    ),
}
