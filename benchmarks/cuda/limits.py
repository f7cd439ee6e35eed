"""The limits of a GPU, measured: INT8 matrix instructions on registers, and device memory.

The peak of a data sheet is at a boost clock that a card under load seldom keeps, and often of
another instruction (from Hopper on, wgmma is the faster one). So the ceiling that kernels are held
against is that of the very instruction they use, measured in the same run.

It runs in a process of its own, so that the one that measures takes no memory of the GPU:
``python -m benchmarks.cuda.limits describe INDEX`` and ``... measure INDEX IMAGE`` write JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from ctypes import c_uint32
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT

from .errors import GpuBenchmarkError, NoGpuError
from .gpu import Gpu, GpuDescription

__all__ = ["ask_gpu", "build_limits", "compile_fat_binary", "measure_limits", "mma_limit"]
__all__ += ["read_limit"]

_SOURCE = Path(__file__).with_name("limits.cu")
_THREADS = 256
_WARPS = _THREADS // 32
# Products of 16 x 8 x 32 of a warp per loop of limits.cu: unrolled steps times chains.
_MACS_PER_LOOP = 16 * 8 * (16 * 8 * 32)
# Blocks of 256 threads per multiprocessor: 16 warps, four per scheduler.
_BLOCKS = 2
_REPETITIONS = 10
_LEAST_MS = 20.0
_MOST_LOOPS = 1 << 22
# Far more than any second-level cache holds.
_MEMORY_BYTES = 1 << 30
_READING_BLOCKS = 8
_IN_FLIGHT = 8  # kInFlight of limits.cu
_LAUNCHES = 200


def compile_fat_binary(source: Path, architectures: tuple[str, ...]) -> bytes:
    """Compile CUDA source that may hold floating point, and join the architectures.

    Parameters
    ----------
    source : Path
        May include the headers of ``targets/cuda/device``.
    architectures : tuple of str
        Such as ``("sm_75", "sm_90")``.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If there is no CUDA compiler.
    GpuBenchmarkError
        If it fails.
    """
    from ibert_tvm.targets.cuda.compile import DEVICE_CODE
    from ibert_tvm.targets.cuda.toolchain import find_cuda_toolchain

    toolchain = find_cuda_toolchain("benchmarks.cuda")
    numbers = [name.removeprefix("sm_") for name in architectures]
    with tempfile.TemporaryDirectory(prefix="cuda-benchmark.") as folder:
        made = Path(folder) / "made.fatbin"
        done = subprocess.run(
            [
                *(toolchain.nvcc, "-fatbin", "-O3", "-std=c++17", f"-I{DEVICE_CODE}"),
                *(f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers),
                *("-o", str(made), str(source)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise GpuBenchmarkError(
                f"{source.name} cannot be compiled",
                where=f"{source}, for {', '.join(architectures)}",
                why=done.stderr.strip()[-800:] or f"nvcc ended with {done.returncode}",
                todo="see whether this nvcc serves these architectures: `ibert doctor`",
            )
        return made.read_bytes()


def build_limits(architectures: tuple[str, ...], path: Path) -> None:
    """Compile ``limits.cu`` into a fat binary; errors as of `compile_fat_binary`."""
    path.write_bytes(compile_fat_binary(_SOURCE, architectures))


def measure_limits(gpu: Gpu, image: bytes) -> dict[str, dict[str, Any]]:
    """Measure what a GPU can do at most.

    Parameters
    ----------
    gpu : Gpu
        The GPU.
    image : bytes
        What `build_limits` wrote, with code for it.

    Returns
    -------
    dict
        ``{name: {"value": float, "unit": str}}``: ``mma``, INT8 matrix products in TOPS (a
        multiply-accumulate is two operations); ``read`` and ``copy`` of device memory in GB/s
        (bytes read plus bytes written); ``launch``, microseconds from one kernel in a stream to
        the next.
    """
    description = gpu.describe()
    found = {"mma": _limit(_tops(gpu, description, image), "TOPS")}
    blocks = description.multiprocessors * _READING_BLOCKS
    # Whole steps of the kernels, and at most an eighth of the memory.
    step = 2 * 16 * _IN_FLIGHT * blocks * _THREADS
    num_bytes = max(min(_MEMORY_BYTES, description.memory_mib << 17) // step, 1) * step
    with gpu.memory(num_bytes) as memory:
        arguments = (memory, c_uint32(num_bytes // 16))
        for name in ("read", "copy"):
            kernel = gpu.kernel(image, f"limit_{name}")
            milliseconds = kernel.time_ms(blocks, _THREADS, arguments, 1, _REPETITIONS)
            found[name] = _limit(num_bytes / milliseconds * 1e-6, "GB/s")
        empty = gpu.kernel(image, "limit_launch")
        milliseconds = empty.time_ms(1, 32, (memory, c_uint32(0)), _LAUNCHES, _REPETITIONS)
        found["launch"] = _limit(1e3 * milliseconds, "us")
    return found


def _limit(value: float, unit: str) -> dict[str, Any]:
    return {"value": round(value, 2), "unit": unit}


def _tops(gpu: Gpu, description: GpuDescription, image: bytes) -> float:
    """TOPS of matrix products, in launches long enough for the clock to be that of a model."""
    kernel = gpu.kernel(image, "limit_mma")
    blocks = description.multiprocessors * _BLOCKS
    with gpu.memory(4 * blocks * _THREADS) as out:
        loops = 16
        while True:
            milliseconds = kernel.time_ms(blocks, _THREADS, (out, c_uint32(loops)), 1)
            if milliseconds >= _LEAST_MS or loops >= _MOST_LOOPS:
                break
            loops *= 4
        arguments = (out, c_uint32(loops))
        milliseconds = kernel.time_ms(blocks, _THREADS, arguments, 1, _REPETITIONS)
    return 2 * _MACS_PER_LOOP * loops * blocks * _WARPS / milliseconds * 1e-9


def mma_limit(limits: Mapping[str, Mapping[str, Any]]) -> float | None:
    """TOPS of the instruction that kernels use; None if not measured."""
    return float(limits["mma"]["value"]) if "mma" in limits else None


def read_limit(limits: Mapping[str, Mapping[str, Any]]) -> float | None:
    """GB/s of device memory, the better of reads and copies; None if not measured."""
    values = [float(limits[name]["value"]) for name in ("read", "copy") if name in limits]
    return max(values, default=None)


def ask_gpu(action: str, *arguments: object, timeout: float = 300) -> dict[str, Any]:
    """Let a process of its own look at a GPU.

    Parameters
    ----------
    action : str
        ``"describe"`` with the index of the GPU: as `GpuDescription`. ``"measure"`` with index and
        path of the image: as `measure_limits`.
    *arguments
        What the action takes.
    timeout : float
        Seconds that it may take.

    Raises
    ------
    NoGpuError
        If there is no GPU that can be used.
    """
    command = [sys.executable, "-m", "benchmarks.cuda.limits", action, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
        )
        document = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise _unusable(f"no answer within {timeout:.0f} s") from error
    except (IndexError, ValueError) as error:
        raise _unusable(done.stderr.strip()[-400:] or f"ended with {done.returncode}") from error
    if "what" in document:
        raise NoGpuError(**document)
    return dict(document)


def _unusable(why: str) -> NoGpuError:
    return NoGpuError(
        "the GPU cannot be used",
        where="python -m benchmarks.cuda.limits",
        why=why,
        todo="see whether `nvidia-smi` works, and `ibert doctor`",
    )


def main() -> int:
    """``describe INDEX`` or ``measure INDEX IMAGE``."""
    from ibert_tvm.common.errors import IbertError

    action, index, *rest = sys.argv[1:]
    document: dict[str, Any]
    try:
        gpu = Gpu(int(index))
        if action == "describe":
            document = gpu.describe().to_json()
        else:
            document = measure_limits(gpu, Path(rest[0]).read_bytes())
    except (IbertError, GpuBenchmarkError) as error:
        document = {name: str(getattr(error, name)) for name in ("what", "where", "why", "todo")}
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
