"""Microcontrollers: Cortex-M without operating system and without floating point."""

from __future__ import annotations

from .description import DotInstruction, Emulator, TargetDescription, Toolchain

NO_DOT_SCALAR = DotInstruction("none", "int8", "int8", 2, 1, tile_rows=2, tile_vectors=1)


def _microcontroller(
    name: str, description: str, architecture: str, board: str, features: tuple[str, ...] = ()
) -> TargetDescription:
    return TargetDescription(
        name=name,
        description=description,
        tvm_target={
            "kind": "llvm",
            "mcpu": name,
            "mtriple": f"{architecture}-none-eabi",
            "mattr": ["+soft-float", *features],
        },
        dot=NO_DOT_SCALAR,
        vector_lanes=1,
        elf_machine="EM_ARM",
        toolchain=Toolchain(
            "arm-none-eabi-gcc",
            "arm-none-eabi",
            "gcc-arm-none-eabi",
            (f"-mcpu={name}", "-mthumb", "-mfloat-abi=soft"),
        ),
        emulator=Emulator("qemu-system-arm", "qemu-system-arm", name, board=board),
        system="bare-metal",
        runtimes=("none",),
        float_abi="soft",
    )


# QEMU's Cortex-M0 board has 16 KB of memory; its code runs on a Cortex-M3 as well.
CORTEX_M0 = _microcontroller(
    "cortex-m0", "ARMv6-M: Cortex-M0, M0+, M1; no division instruction", "thumbv6m", "mps2-an385"
)
CORTEX_M3 = _microcontroller("cortex-m3", "ARMv7-M: Cortex-M3", "thumbv7m", "mps2-an385")
CORTEX_M4 = _microcontroller(
    "cortex-m4", "ARMv7E-M with SIMD in general registers: Cortex-M4, M7", "thumbv7em", "mps2-an386"
)
CORTEX_M55 = _microcontroller(
    "cortex-m55",
    "ARMv8.1-M with integer vectors (MVE): Cortex-M55, M85",
    "thumbv8.1m.main",
    "mps3-an547",
    ("+mve",),
)

CORTEX_M = (CORTEX_M0, CORTEX_M3, CORTEX_M4, CORTEX_M55)
