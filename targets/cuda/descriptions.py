"""NVIDIA GPUs with INT8 tensor cores: Turing (T4) and newer."""

from __future__ import annotations

import re

from ..description import DotInstruction, Gpu, TargetDescription
from ..errors import TargetError

# Weights stay row-major with the depth padded to 16 bytes, which one load takes; the tiles of a
# tensor core are the business of the device code.
TENSOR_CORE = DotInstruction("mma", "int8", "int8", 1, 16, tile_rows=1, tile_vectors=1)

_HOST = {"kind": "llvm", "mcpu": "x86-64-v2", "mtriple": "x86_64-linux-gnu"}


def _describe(name: str, description: str, gpu: Gpu) -> TargetDescription:
    return TargetDescription(
        name=name,
        description=description,
        tvm_target={
            "kind": "cuda",
            "arch": gpu.architectures[0],
            "max_threads_per_block": 1024,
            "thread_warp_size": 32,
            "max_shared_memory_per_block": gpu.shared_bytes,
            "host": _HOST,
        },
        dot=TENSOR_CORE,
        # Threads compute single numbers in registers of 32 bits.
        vector_lanes=1,
        elf_machine="EM_X86_64",
        runtimes=("tvm",),
        gpu=gpu,
    )


T4 = _describe("t4", "NVIDIA T4 (Turing, sm_75)", Gpu(("sm_75",), 40, 64 << 10))
A100 = _describe("a100", "NVIDIA A100 (Ampere, sm_80)", Gpu(("sm_80",), 108, 163 << 10))
H100 = _describe("h100", "NVIDIA H100 (Hopper, sm_90)", Gpu(("sm_90",), 132, 227 << 10))
H200 = _describe("h200", "NVIDIA H200 (Hopper, sm_90)", Gpu(("sm_90",), 132, 227 << 10))

GPUS = (T4, A100, H100, H200)

_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}


def gpu_target(name: str) -> TargetDescription:
    """Description of ``cuda:sm_XX``, or of several architectures, ``cuda:sm_75+sm_80``.

    Parameters
    ----------
    name
        What the user wrote.

    Returns
    -------
    TargetDescription
        Kernels are made for the least of the architectures.

    Raises
    ------
    TargetError
        If an architecture is unknown or has no INT8 tensor cores.
    """
    found = re.findall(r"sm_(\d+)", name)
    known = sorted(_SHARED)
    if name != "cuda:" + "+".join(f"sm_{number}" for number in found) or not all(
        int(number) in known for number in found
    ):
        raise TargetError(
            what=f"unknown target {name!r}",
            where="--target",
            why="it names no architecture with INT8 tensor cores",
            todo=f"use cuda:sm_XX with XX one of: {', '.join(map(str, known))}; several with +",
        )
    numbers = sorted({int(number) for number in found})
    architectures = tuple(f"sm_{number}" for number in numbers)
    shared = min(_SHARED[number] for number in numbers) << 10
    return _describe(
        name, f"NVIDIA GPUs, {', '.join(architectures)}", Gpu(architectures, 40, shared)
    )
