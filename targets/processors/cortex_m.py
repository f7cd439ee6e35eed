"""Microcontrollers: Cortex-M without operating system and without floating point."""

from __future__ import annotations

from dataclasses import replace

from ..description import DotInstruction, TargetDescription
from ..machines.thumb import THUMB
from .arm import SMLABB, SMLAD, SSAT, USAT

NO_DOT_SCALAR = DotInstruction("none", "int8", "int8", 2, 1, tile_rows=2, tile_vectors=1)
# By microkernels (targets/microkernels), one product per instruction; LDRD and LDM load activations
# of several rows, widened to words.
MLA = DotInstruction("mla", "int32", "int8", 2, 1, tile_rows=4, tile_vectors=8)
MULS = DotInstruction("muls", "int32", "int8", 1, 1, tile_rows=5, tile_vectors=16)

# Sixteen products per instruction, added to a general register; a microkernel takes four rows, two
# columns at a time, over the whole depth. Row operations fill vectors with 16-bit arithmetic.
VMLADAVA = DotInstruction(
    "vmladava", "int8", "int8", 4, 16, tile_rows=4, tile_vectors=16, sets=True
)


# What callers' compilers say of the processor (Arm C Language Extensions, section 5.4).
_THUMB2 = "__ARM_ARCH_ISA_THUMB >= 2"
_DSP = "defined(__ARM_FEATURE_DSP)"
_V8_DSP = f"__ARM_ARCH >= 8 && {_DSP}"


def _microcontroller(
    name: str,
    description: str,
    architecture: str,
    board: str,
    *features: str,
    stand_in: str = "",
) -> TargetDescription:
    """A Cortex-M; `stand_in` is another whose name older compilers and the emulator know."""
    known = stand_in or name
    return TargetDescription(
        name=name,
        description=description,
        machine=THUMB,
        tvm_target={
            "kind": "llvm",
            "mcpu": name,
            "mtriple": f"{architecture}-none-eabi",
            "mattr": ["+soft-float", *features],
            # LLVM's third level unrolls the epilogues of matrix products whole: a third of the code
            # of a model, for 3% of their instructions.
            "opt-level": 2,
            "vector-width": 128,  # TVM's own choice, about which it warns for every kernel
        },
        dot=NO_DOT_SCALAR,
        vector_lanes=1,
        float_abi="soft",
        compiler_flags=(f"-mcpu={known}", "-mthumb", "-mfloat-abi=soft"),
        emulated=known,
        emulated_board=board,
    )


def _with_dsp(name: str, description: str, architecture: str, board: str) -> TargetDescription:
    return replace(
        _microcontroller(name, description, architecture, board),
        dot=SMLAD,
        microkernels=("smlad.c",),
        scalar_instructions=(SMLABB, SSAT, USAT),
        functions=("positive",),
        runs_on=_DSP,
    )


def _with_vectors(
    name: str, description: str, also: tuple[str, ...] = (), stand_in: str = ""
) -> TargetDescription:
    return replace(
        _microcontroller(
            name, description, "thumbv8.1m.main", "mps3-an547", "+mve", stand_in=stand_in
        ),
        dot=VMLADAVA,
        vector_lanes=8,
        microkernels=("mve.c",),
        scalar_dot=(SMLAD, ("smlad.c",)),
        q15_multiply=((8, "llvm.arm.mve.vqrdmulh.v8i16"),),
        high_product=((4, "llvm.arm.mve.vmulh"),),
        functions=("high_product",),
        whole_vectors=True,
        retry_options=("-disable-machine-licm",),
        # GCC has vector instructions in assembly only where values may be passed in them, and takes
        # integer ones alone if there is no floating-point unit.
        microkernel_flags=("-mcpu=cortex-m55+nofp", "-mfloat-abi=softfp"),
        runs_on=_V8_DSP,
        also=also,
    )


# QEMU's Cortex-M0 board has 16 KB of memory; its code runs on a Cortex-M3 as well.
CORTEX_M0 = replace(
    _microcontroller(
        "cortex-m0",
        "ARMv6-M: Cortex-M0, M0+, M1, M23; no division instruction",
        "thumbv6m",
        "mps2-an385",
    ),
    dot=MULS,
    microkernels=("muls.c",),
    also=("cortex-m0plus", "cortex-m1", "cortex-m23"),
)
CORTEX_M3 = replace(
    _microcontroller(
        "cortex-m3",
        "ARMv7-M: Cortex-M3, and ARMv8-M without the DSP extension",
        "thumbv7m",
        "mps2-an385",
    ),
    dot=MLA,
    microkernels=("mla.c",),
    scalar_instructions=(USAT,),
    functions=("positive",),
    runs_on=_THUMB2,
)
CORTEX_M4 = _with_dsp(
    "cortex-m4", "ARMv7E-M with SIMD in general registers: Cortex-M4", "thumbv7em", "mps2-an386"
)
CORTEX_M7 = _with_dsp("cortex-m7", "Cortex-M7: code of cortex-m4", "thumbv7em", "mps2-an500")
CORTEX_M33 = replace(
    _with_dsp(
        "cortex-m33",
        "ARMv8-M with the DSP extension: Cortex-M33, M35P; without it use cortex-m3",
        "thumbv8m.main",
        "mps2-an505",
    ),
    runs_on=_V8_DSP,
    also=("cortex-m35p",),
)
CORTEX_M55 = _with_vectors(
    "cortex-m55", "ARMv8.1-M with integer vectors (MVE): Cortex-M52, M55", also=("cortex-m52",)
)
CORTEX_M85 = _with_vectors(
    "cortex-m85",
    "Cortex-M85: code of cortex-m55, which GCC 12 and QEMU 7 take it for",
    stand_in="cortex-m55",
)
