"""NVIDIA GPUs with INT8 tensor cores: Turing (T4) and newer, and the processors that drive them.

Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; numbers of multiprocessors are those of a common card of the architecture. They choose
sizes of tiles, nothing else: code runs on every GPU of its architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibert_tvm.common.errors import TargetError

from ..description import DotInstruction, Gpu, TargetDescription
from ..machines import MACHINES
from ..machines.aarch64 import AARCH64
from ..machines.record import Linux, Machine
from ..machines.x86_64 import X86_64

# Weights stay row-major with the depth padded to 16 bytes, which one load takes; the tiles of a
# tensor core are the business of the device code.
TENSOR_CORE = DotInstruction(
    "mma", "int8", "int8", 1, 16, tile_rows=1, tile_vectors=1, either_sign=True
)

_PREFIX = "cuda:"
_PTX = "ptx"
_THREADS_PER_BLOCK, _WARP = 1024, 32


@dataclass(frozen=True)
class _Architecture:
    """What a compute capability has: a card, multiprocessors, shared memory per block in KB."""

    card: str
    multiprocessors: int
    shared_kilobytes: int
    host: Machine = X86_64


_ARCHITECTURES = {
    75: _Architecture("T4, RTX 2080", 40, 64),
    80: _Architecture("A100", 108, 163),
    86: _Architecture("A10, RTX 3090", 72, 99),
    87: _Architecture("Jetson Orin", 16, 163, AARCH64),
    89: _Architecture("L4, RTX 4090", 58, 99),
    90: _Architecture("H100, H200", 132, 227),
    100: _Architecture("B200", 148, 227),
    103: _Architecture("B300", 160, 227),
    110: _Architecture("Jetson Thor", 20, 227, AARCH64),
    120: _Architecture("RTX 5090", 170, 99),
    121: _Architecture("DGX Spark", 48, 99, AARCH64),
}


# No kernel runs on the processor, so that the least that there is costs nothing.
_HOSTS = {
    name: (machine, machine.system.driver)
    for name, machine in MACHINES.items()
    if isinstance(machine.system, Linux) and machine.system.driver is not None
}


def _describe(name: str, description: str, gpu: Gpu, host: str = X86_64.name) -> TargetDescription:
    machine, driver = _HOSTS[host]
    return TargetDescription(
        name=name,
        description=description,
        machine=machine,
        tvm_target={
            "kind": "cuda",
            "arch": gpu.architectures[0],
            "max_threads_per_block": _THREADS_PER_BLOCK,
            "thread_warp_size": _WARP,
            "max_shared_memory_per_block": gpu.shared_bytes,
            "host": {"kind": "llvm", **driver.processor},
        },
        dot=TENSOR_CORE,
        # Threads compute single numbers in registers of 32 bits.
        vector_lanes=1,
        required_features=driver.required_features,
        functions=("square_root", "floor_log2", "normalised_reciprocal", "minimum"),
        gpu=gpu,
    )


def _gpu(numbers: tuple[int, ...], ptx: bool = False) -> Gpu:
    limits = [_ARCHITECTURES[number] for number in numbers]
    return Gpu(
        architectures=tuple(f"sm_{number}" for number in numbers),
        multiprocessors=min(limit.multiprocessors for limit in limits),
        shared_bytes=min(limit.shared_kilobytes for limit in limits) << 10,
        ptx=ptx,
    )


_NAMED = {"t4": 75, "a100": 80, "h100": 90, "h200": 90}

T4 = _describe("t4", "NVIDIA T4 (Turing, sm_75)", _gpu((75,)))
A100 = _describe("a100", "NVIDIA A100 (Ampere, sm_80)", _gpu((80,)))
H100 = _describe("h100", "NVIDIA H100 (Hopper, sm_90)", _gpu((90,)))
H200 = _describe("h200", "NVIDIA H200 (Hopper, sm_90)", _gpu((90,)))

GPUS = (T4, A100, H100, H200)


def is_gpu_name(name: str) -> bool:
    """Whether a target's name is meant for `gpu_target`: ``cuda:...``, or GPUs joined with +."""
    return name.startswith(_PREFIX) or name.partition("+")[0] in _NAMED


def gpu_target(name: str) -> TargetDescription:
    """Description of architectures by number, of several, and of other hosts.

    Parameters
    ----------
    name
        ``cuda:sm_86``, or several of which a library holds code for each: ``cuda:sm_75+sm_80``,
        ``t4+a100``. ``+ptx`` adds portable code of the newest, which a driver compiles for GPUs
        that are newer still. ``/aarch64`` or ``/x86-64`` says which processor drives the GPU, where
        it is not the usual one.

    Returns
    -------
    TargetDescription
        Kernels are made for the least of the architectures; device code chooses instructions by
        each.

    Raises
    ------
    TargetError
        If an architecture is unknown or has no INT8 tensor cores, or the host is unknown.
    """
    names, _, host = name.removeprefix(_PREFIX).partition("/")
    parts = names.split("+")
    numbers = tuple(sorted({_number(part, name) for part in parts if part != _PTX}))
    if not numbers:
        raise _unknown(name, f"{_PTX!r} is of no architecture")
    others = [_ARCHITECTURES[n].host for n in numbers if _ARCHITECTURES[n].host is not X86_64]
    usual = next(iter(others), X86_64).name
    if "/" in name and host not in _HOSTS:
        raise _unknown(name, f"{host!r} is no processor that drives GPUs")
    cards = "; ".join(f"sm_{n}: {_ARCHITECTURES[n].card}" for n in numbers)
    host = host or usual
    where = "" if host == X86_64.name else f", driven by {host}"
    return _describe(name, f"NVIDIA GPUs ({cards}){where}", _gpu(numbers, _PTX in parts), host)


def _number(part: str, name: str) -> int:
    """Compute capability of an architecture or a card."""
    if part in _NAMED:
        return _NAMED[part]
    digits = part.removeprefix("sm_")
    if part.startswith("sm_") and digits.isdecimal() and int(digits) in _ARCHITECTURES:
        return int(digits)
    raise _unknown(name, f"{part!r} is no architecture with INT8 tensor cores")


def _unknown(name: str, why: str) -> TargetError:
    known = ", ".join(f"sm_{number}" for number in _ARCHITECTURES)
    return TargetError(
        what=f"unknown target {name!r}",
        where="--target",
        why=why,
        todo=f"use {', '.join(_NAMED)}, or cuda:sm_XX with one of {known}; several joined with +, "
        f"+{_PTX} for newer GPUs, and /{' or /'.join(_HOSTS)} for the processor",
    )
