"""RISC-V: microcontrollers of 32 bits without floating point, and boards of 64 bits under Linux."""

from __future__ import annotations

from dataclasses import replace

from ..description import DotInstruction, TargetDescription
from ..machines.riscv import RISCV32, RISCV64

# By microkernels (targets/microkernels): a multiplication and an addition per product, or for two
# in registers of 64 bits.
RV32M = DotInstruction("rv32m", "int16", "int8", 4, 1, tile_rows=4, tile_vectors=4)
RV64M = DotInstruction("rv64m", "int16", "int8", 4, 1, tile_rows=8, tile_vectors=4)

# By a microkernel, whose tile of seven rows fills the registers; several share a call.
VWMACC = DotInstruction(
    "vwmacc", "int16", "int8", 32, 1, tile_rows=32, tile_vectors=1, short="vwmacc_short"
)


def _microcontroller(
    name: str,
    description: str,
    *features: str,
    runs_on: str = "defined(__riscv_mul)",
    also: tuple[str, ...] = (),
) -> TargetDescription:
    return TargetDescription(
        name=name,
        description=description,
        machine=RISCV32,
        tvm_target={
            "kind": "llvm",
            "mcpu": "generic-rv32",
            "mtriple": "riscv32-none-elf",
            # Calls are written for any distance; a linker makes short ones of those it is told of.
            "mattr": ["+m", "+relax", *features],
            "mabi": "ilp32",
            "opt-level": 2,  # as for Cortex-M
            "vector-width": 128,
        },
        dot=RV32M,
        vector_lanes=1,
        microkernels=("rv32m.c",),
        float_abi="soft",
        compiler_flags=(f"-march={name}", "-mabi=ilp32"),
        emulated="rv32",
        emulated_board="virt",
        runs_on=runs_on,
        also=also,
    )


RV32IMC = _microcontroller(
    "rv32imc",
    "32-bit RISC-V with compressed instructions: rv32imac, ESP32-C2, C3, C6, H2, CH32V103",
    "+c",
    runs_on="defined(__riscv_mul) && defined(__riscv_compressed)",
    also=("rv32imac", "esp32-c2", "esp32-c3", "esp32-c6", "esp32-h2"),
)
RV32IM = _microcontroller("rv32im", "32-bit RISC-V with multiplication and division")
RV64GC = TargetDescription(
    name="rv64gc",
    description="64-bit RISC-V under Linux, no vectors used (SiFive U74, JH7110, Spacemit K1)",
    machine=RISCV64,
    tvm_target={
        "kind": "llvm",
        "mcpu": "generic-rv64",
        "mtriple": "riscv64-linux-gnu",
        "mattr": ["+m", "+a", "+f", "+d", "+c", "+relax"],
        "mabi": "lp64d",
        "vector-width": 128,
    },
    dot=RV64M,
    vector_lanes=1,
    required_features=tuple("imafdc"),
    microkernels=("rv64m.c",),
    float_abi="hard",
    compiler_flags=("-march=rv64gc", "-mabi=lp64d"),
    emulated="rv64",
)
# LLVM is told of vectors of integers alone, so that it has none of floats to choose. Code for
# registers of 128 bits, the fewest that V has, runs on longer ones.
RV64GCV = replace(
    RV64GC,
    name="rv64gcv",
    description="64-bit RISC-V under Linux with vectors of any length: RVV 1.0 (Spacemit K1)",
    tvm_target={
        **RV64GC.tvm_target,
        "mattr": ["+m", "+a", "+f", "+d", "+c", "+relax", "+zve64x", "+zvl128b"],
    },
    dot=VWMACC,
    vector_lanes=16,
    required_features=tuple("imafdcv"),
    microkernels=("rvv.c",),
    microkernel_flags=("-fno-jump-tables",),  # which the audit cannot follow
    compiler_flags=("-march=rv64gcv", "-mabi=lp64d"),
    emulated="rv64,v=true,vext_spec=v1.0,vlen=128",
)
