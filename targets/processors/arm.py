"""ARM processors under Linux, 64 and 32 bits, with and without a floating-point unit.

Code for a processor without floating-point unit is compiled with soft-float, so that a
floating-point operation could only be a call of a library function, which nothing links.
"""

from __future__ import annotations

from ..description import DotInstruction, TargetDescription
from ..machines.aarch64 import AARCH64
from ..machines.arm import ARM

# 16 accumulators, eight registers of activations and the weights in 32 registers. More accumulators
# would spare loads, but a tile of three vectors leaves none for activations.
SDOT = DotInstruction("sdot", "int8", "int8", 4, 4, tile_rows=8, tile_vectors=2, groups=4, unroll=2)
# 16 accumulators of two rows by two columns.
SMMLA = DotInstruction("smmla", "int8", "int8", 4, 8, tile_rows=8, tile_vectors=2, rows=2, unroll=4)
# Activations are repeated along a register before they are multiplied, which wide tiles share.
SMLAL_64 = DotInstruction(
    "smlal_sadalp",
    "int8",
    "int8",
    4,
    2,
    tile_rows=4,
    tile_vectors=4,
    groups=2,
    unroll=4,
    full_range="smull_sadalp",
)
# 16 registers: six accumulators, as many products in flight, repeated activations and weights.
SMLAL_32 = DotInstruction(
    "vmlal_vpadal",
    "int8",
    "int8",
    4,
    2,
    tile_rows=2,
    tile_vectors=3,
    groups=4,
    full_range="vmull_vpadal",
)
# In general registers, by a microkernel (targets/microkernels): two products per instruction, of
# operands widened to 16 bits; four accumulators and eight words of operands fill the registers.
SMLAD = DotInstruction("smlad", "int16", "int16", 2, 4, tile_rows=2, tile_vectors=1, rows=2)

# Rounds and saturates as the specification asks: (2ab + 2^15) >> 16, where not both are -2^15.
_SQRDMULH_64 = tuple((lanes, f"llvm.aarch64.neon.sqrdmulh.v{lanes}i16") for lanes in (4, 8))
_SQRDMULH_32 = tuple((lanes, f"llvm.arm.neon.vqrdmulh.v{lanes}i16") for lanes in (4, 8))

# Of single numbers: the product of 16-bit factors with an addend, and saturation.
SMLABB = ("multiply_add", "llvm.arm.smlabb")
SSAT = ("saturate", "llvm.arm.ssat")
USAT = ("positive", "llvm.arm.usat")


def _aarch64(
    name: str,
    description: str,
    processor: dict[str, object],
    dot: DotInstruction,
    features: tuple[str, ...],
    emulated: str,
) -> TargetDescription:
    """A 64-bit processor: all have NEON, and one compiler serves them."""
    return TargetDescription(
        name=name,
        description=description,
        machine=AARCH64,
        tvm_target={"kind": "llvm", "mtriple": "aarch64-linux-gnu", **processor},
        dot=dot,
        vector_lanes=16,
        required_features=("asimd", *features),
        q15_multiply=_SQRDMULH_64,
        emulated=emulated,
    )


RPI4 = _aarch64(
    "rpi4",
    "Raspberry Pi 4 and other ARMv8.0 boards (Cortex-A72), 64 bits, NEON",
    {"mcpu": "cortex-a72"},
    SMLAL_64,
    (),
    emulated="cortex-a53",
)

AARCH64_DOTPROD = _aarch64(
    "aarch64-dotprod",
    "64-bit ARM with SDOT (Cortex-A55, A76, Neoverse N1, Raspberry Pi 5 and newer)",
    {"mattr": ["+v8.2a", "+neon", "+dotprod"]},
    SDOT,
    ("asimddp",),
    emulated="cortex-a76",
)

AARCH64_I8MM = _aarch64(
    "aarch64-i8mm",
    "64-bit ARM with SMMLA (Neoverse V1, N2, Cortex-A510, A715, Apple M2 and newer)",
    {"mattr": ["+v8.2a", "+neon", "+dotprod", "+i8mm"]},
    SMMLA,
    ("asimddp", "i8mm"),
    emulated="max",
)

ARMV7_NEON = TargetDescription(
    name="armv7-neon",
    description="32-bit ARM with NEON, VFPv4 (Cortex-A7, A15; Raspberry Pi 2 to 4 in 32 bits)",
    machine=ARM,
    tvm_target={
        "kind": "llvm",
        "mcpu": "cortex-a7",
        "mtriple": "armv7-linux-gnueabihf",
        "mattr": ["+neon"],
        "mfloat-abi": "hard",
    },
    dot=SMLAL_32,
    vector_lanes=16,
    required_features=("neon", "idiva"),
    q15_multiply=_SQRDMULH_32,
    explicit_row_sums=True,
    float_abi="hard",
    compiler_flags=("-mcpu=cortex-a7", "-mfpu=neon-vfpv4"),
    emulated="cortex-a7",
)

ARMV6_SOFTFLOAT = TargetDescription(
    name="armv6-softfloat",
    description="32-bit ARM without floating-point unit (ARM1176 with soft float, and newer)",
    machine=ARM,
    tvm_target={
        "kind": "llvm",
        "mcpu": "arm1176jz-s",
        "mtriple": "armv6-linux-gnueabi",
        "mattr": ["+soft-float", "-neon"],
    },
    dot=SMLAD,
    vector_lanes=1,
    microkernels=("smlad.c",),
    scalar_instructions=(SMLABB, SSAT, USAT),
    functions=("positive",),
    float_abi="soft",
    compiler_flags=("-march=armv6", "-mfloat-abi=soft"),
    emulated="cortex-a7,vfp=off,neon=off",
)
