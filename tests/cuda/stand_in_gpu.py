"""A GPU for machines without one: CUDA's two libraries, with kernels that run on the CPU.

TVM's CUDA runtime, our engine and graph launches work on it as on a device, bit for bit. One
process has one device, whose capability is fixed when it is first used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.targets import TargetDescription, get_target
from tests.cache import cached, forget_unused
from tests.cuda.kernel_image import (
    DEVICE_CODE,
    ON_HOST,
    bundle,
    compiler_version,
    kernel_image,
    run_compiler,
)

_FLAGS = ["-std=c++17", "-O3", "-march=native", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra"]
_FLAGS += ["-Werror", "-fno-strict-aliasing"]
_RUNTIME = "libcudart.cpp"
_DEFAULT_SHARED = 48 << 10
_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def libraries() -> Path:
    """Build both libraries, once for each version of their sources.

    Returns
    -------
    pathlib.Path
        Folder of ``libcuda.so.1`` and ``libcudart.so.13``.
    """
    driver = ON_HOST / "driver"
    sources = sorted([*ON_HOST.glob("*.h"), *driver.iterdir()])
    text = "\0".join(path.read_text(encoding="utf-8") for path in sources)
    with cached("driver", text, *_FLAGS, _processor(), compiler_version()) as (place, work):
        if work is None:
            return place
        forget_unused()
        files = [str(path) for path in sorted(driver.glob("*.cpp")) if path.name != _RUNTIME]
        cuda, cudart = work / "libcuda.so.1", work / "libcudart.so.13"
        script = f"-Wl,--version-script={driver}"
        run_compiler(
            "g++",
            *_FLAGS,
            *files,
            "-Wl,-soname,libcuda.so.1",
            f"{script}/libcuda.map",
            "-o",
            str(cuda),
            "-ldl",
        )
        run_compiler(
            "g++",
            *_FLAGS,
            str(driver / _RUNTIME),
            "-Wl,-soname,libcudart.so.13",
            f"{script}/libcudart.map",
            "-o",
            str(cudart),
            f"-L{work}",
            "-l:libcuda.so.1",
            "-Wl,-rpath,$ORIGIN",
        )
    return place


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def environment(**settings: object) -> dict[str, str]:
    """Environment of a process that shall find the stand-in GPU.

    Parameters
    ----------
    **settings
        ``capability`` (75 by default, 80, 90), ``memory`` in bytes, ``devices`` (0 or 1), ``order``
        of threads (``forward``, ``reverse`` or a seed), ``log`` (a file that gets a line per copy
        and kernel), ``fail`` (``cudaMalloc:3:2``: the third call and later ones give error 2),
        ``eager`` (1: work is done when it is submitted).

    Returns
    -------
    dict
        The present environment, and what that takes.
    """
    variables = {f"STAND_IN_GPU_{name.upper()}": str(value) for name, value in settings.items()}
    path = os.pathsep.join(filter(None, [str(libraries()), os.environ.get("LD_LIBRARY_PATH", "")]))
    return {**os.environ, **variables, "LD_LIBRARY_PATH": path}


class StandInGpuError(Exception):
    """What a kernel or a program did that a GPU does not forgive."""


@dataclass(frozen=True)
class BankCount:
    """Accesses to shared memory from one place in a kernel.

    Attributes
    ----------
    kernel
        Its name.
    place
        Offset in the image; of ldmatrix the line in its header.
    instructions
        Of warps.
    turns
        That these took: as many as the most different words that one bank had to give.
    least
        Turns if no bank had met another: one, and one for each further half or quarter of a warp
        where lanes access 8 or 16 bytes, or matrix.
    """

    kernel: str
    place: int
    instructions: int
    turns: int
    least: int


class StandInGpu:
    """The libraries, loaded into this process.

    Parameters
    ----------
    cuda, cudart
        ``libcuda.so.1`` and ``libcudart.so.13``.

    Attributes
    ----------
    capability : int
        75, 80 or 90.
    """

    def __init__(self, cuda: ctypes.CDLL, cudart: ctypes.CDLL) -> None:
        self.cuda = cuda
        self.cudart = cudart
        cuda.stand_in_gpu_calls.restype = ctypes.c_uint64
        cuda.stand_in_gpu_report.restype = ctypes.c_char_p
        cuda.stand_in_gpu_banks.restype = ctypes.c_char_p
        cuda.stand_in_gpu_memory.restype = ctypes.c_uint64
        cuda.stand_in_gpu_order.argtypes = [ctypes.c_int, ctypes.c_uint64]

    @property
    def capability(self) -> int:
        """What images the device takes: 75, 80 or 90."""
        return int(self.cuda.stand_in_gpu_capability())

    def become(self, capability: int) -> None:
        """Change the device's architecture; modules that are loaded stay what they are."""
        self.cuda.stand_in_gpu_become(capability)

    def calls(self, name: str) -> int:
        """How often a function of CUDA was called; ``kernel`` and ``block`` count executions."""
        return int(self.cuda.stand_in_gpu_calls(name.encode()))

    @property
    def report(self) -> str:
        """What exactly the last error was, in words that a real driver would not have."""
        return self.cuda.stand_in_gpu_report().decode()

    def memory(self) -> int:
        """Bytes of device memory in use."""
        return int(self.cuda.stand_in_gpu_memory(0))

    def banks(self) -> list[BankCount]:
        """How shared memory's banks served the observed kernels since the last call."""
        lines = self.cuda.stand_in_gpu_banks().decode().splitlines()
        parts = (line.split("\t") for line in lines)
        return [BankCount(name, *map(int, numbers)) for name, *numbers in parts]

    def reset(self) -> None:
        """Forget an error that a kernel left; a real device would need a new process."""
        self.cuda.stand_in_gpu_reset()

    @contextlib.contextmanager
    def order(self, order: str | int) -> Iterator[None]:
        """Run the threads of a block in another order: ``forward``, ``reverse``, or a seed."""
        kinds = {"forward": 0, "reverse": 1}
        kind, seed = (kinds[order], 0) if isinstance(order, str) else (2, order)
        self.cuda.stand_in_gpu_order(kind, seed)
        try:
            yield
        finally:
            self.cuda.stand_in_gpu_order(0, 0)

    def check(self, code: int) -> None:
        """Raise the error that a function of CUDA returned, in the words of the report."""
        if code != 0:
            report = self.report
            self.reset()
            raise StandInGpuError(report or f"error {code}")


class Gpu(Protocol):
    """What tests ask of a GPU, be it the stand-in or a real one (`tests.cuda.real_gpu`)."""

    report: str
    capability: int

    def become(self, capability: int) -> None:
        """As `StandInGpu.become`."""

    def calls(self, name: str) -> int:
        """As `StandInGpu.calls`."""

    def memory(self) -> int:
        """As `StandInGpu.memory`."""

    def reset(self) -> None:
        """As `StandInGpu.reset`."""

    def order(self, order: str | int) -> AbstractContextManager[None]:
        """As `StandInGpu.order`."""


_REPLACEMENTS: list[Any] = []


@contextlib.contextmanager
def replaced_by(gpu: Any) -> Iterator[None]:
    """Let a real GPU take the place of the stand-in: what is compiled and run inside is for it.

    Parameters
    ----------
    gpu
        A `Gpu` with a method ``image`` that makes machine code of CUDA source.
    """
    _REPLACEMENTS.append(gpu)
    try:
        yield
    finally:
        _REPLACEMENTS.pop()


def load() -> Any:
    """Load the stand-in libraries, and TVM's CUDA runtime on top of them, into this process.

    Returns
    -------
    Gpu
        A `StandInGpu`, or inside `replaced_by` what takes its place.
    """
    if _REPLACEMENTS:
        _load_tvm_runtime()
        return _REPLACEMENTS[-1]
    return _load_stand_in()


@functools.cache
def _load_stand_in() -> StandInGpu:
    folder = libraries()
    cuda = ctypes.CDLL(str(folder / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
    cudart = ctypes.CDLL(str(folder / "libcudart.so.13"), ctypes.RTLD_GLOBAL)
    _load_tvm_runtime()
    return StandInGpu(cuda, cudart)


@functools.cache
def _load_tvm_runtime() -> None:
    """Load TVM's CUDA runtime on whatever libraries of CUDA the process has."""
    from ibert_tvm.runtime.tvm_runtime import load_runtime

    runtime = load_runtime()
    # `import tvm` has tried before, if it came first, and has not found CUDA.
    if runtime.get_global_func("device_api.cuda", allow_missing=True) is None:
        import tvm

        folder = Path(tvm.__file__).parent / "lib"
        ctypes.CDLL(str(folder / "libtvm_runtime_cuda.so"), ctypes.RTLD_GLOBAL)


def capability_of(architecture: str) -> int:
    """75 of ``"sm_75"``."""
    return int(architecture.removeprefix("sm_").rstrip("a"))


def _observe(observed: bool) -> bool:
    """Whether accesses are checked: where asked for, or everywhere (STAND_IN_GPU_OBSERVED=1)."""
    return observed or os.environ.get("STAND_IN_GPU_OBSERVED", "0") != "0"


@contextlib.contextmanager
def images_for_stand_in(observed: bool = False) -> Iterator[None]:
    """Compile the device code of every build inside with g++, for the stand-in GPU.

    Parameters
    ----------
    observed
        Check every access to memory when it runs.
    """
    from ibert_tvm.targets.cuda import compile as device_code

    def make(source: str, description: TargetDescription) -> bytes:
        return target_image(source, description, observed, optimised=True)

    compile_with_host = functools.partial(device_code.compile_device_code, make_image=make)
    with mock.patch.object(device_code, "compile_device_code", compile_with_host):
        yield


def target_image(
    source: str, description: TargetDescription, observed: bool = False, optimised: bool = False
) -> bytes:
    """Image of CUDA source for every architecture of a target.

    Parameters
    ----------
    source
        With the headers of ``targets/cuda/device`` included.
    description
        The target.
    observed
        Check every access to memory when it runs.
    optimised
        As for `kernel_image`.
    """
    assert description.gpu is not None
    if _REPLACEMENTS:
        return _REPLACEMENTS[-1].image(source)
    capabilities = [capability_of(name) for name in description.gpu.architectures]
    images = [
        (capability, kernel_image(source, capability, _observe(observed), optimised=optimised))
        for capability in capabilities
    ]
    return images[0][1] if len(images) == 1 else bundle(images)


class Kernel:
    """A scheduled kernel, compiled for the stand-in GPU.

    Parameters
    ----------
    func
        PrimFunc with its threads bound, as a rule for GPUs returns it.
    target
        Name of a target with one architecture; the device becomes one of that.
    observed
        Check every access to memory: bounds, alignment, races, what was never written.

    Attributes
    ----------
    source : str
        CUDA source as TVM generated it.
    """

    def __init__(self, func: Any, target: str = "t4", observed: bool = False) -> None:
        gpu = load()
        import tvm
        import tvm_ffi

        from ibert_tvm.targets.cuda.pipeline import gpu_pipeline

        description = get_target(target)
        assert description.gpu is not None
        self.source = ""
        self._capability = description.gpu.capability
        gpu.become(self._capability)
        headers = "".join(f'#include "{path.name}"\n' for path in sorted(DEVICE_CODE.glob("*.cuh")))

        def compile_source(code: str) -> bytes:
            self.source = code
            return target_image(headers + code, description, observed)

        name = "tvm_callback_cuda_compile"
        before = tvm_ffi.get_global_func(name, allow_missing=True)
        tvm_ffi.register_global_func(name, compile_source, override=True)
        try:
            symbol = func.with_attr("global_symbol", "kernel").without_attr("ibert.kernel")
            self._executable = tvm.compile(
                tvm.IRModule({"kernel": symbol}),
                target=tvm.target.Target(dict(description.tvm_target)),
                tir_pipeline=gpu_pipeline(description, {}),
            )
        finally:
            if before is None:
                tvm_ffi.registry.remove_global_func(name)
            else:
                tvm_ffi.register_global_func(name, before, override=True)

    def __call__(
        self,
        arrays: Sequence[NDArray[Any]],
        orders: Sequence[str | int] = ("forward", "reverse", 1),
    ) -> list[NDArray[Any]]:
        """Run it in several orders of threads, which must not make a difference.

        Parameters
        ----------
        arrays
            Its arguments; what they hold is copied, so that outputs are not changed.
        orders
            As of `StandInGpu.order`.

        Returns
        -------
        list of numpy.ndarray
            All arguments afterwards.
        """
        import tvm

        gpu = load()
        gpu.become(self._capability)
        device = tvm.cuda(0)
        results: list[list[NDArray[Any]]] = []
        for order in orders:
            with gpu.order(order):
                tensors = [tvm.runtime.tensor(np.ascontiguousarray(a), device) for a in arrays]
                try:
                    self._executable["kernel"](*tensors)
                    device.sync()
                except Exception as error:
                    report = gpu.report
                    gpu.reset()
                    raise StandInGpuError(report or str(error)) from error
                results.append([tensor.numpy() for tensor in tensors])
            for number, (first, other) in enumerate(zip(results[0], results[-1], strict=True)):
                np.testing.assert_array_equal(
                    other, first, f"argument {number} depends on the order of threads: {order}"
                )
        return results[0]


def run_kernel(
    func: Any,
    arrays: Sequence[NDArray[Any]],
    target: str = "t4",
    observed: bool = False,
    orders: Sequence[str | int] = ("forward", "reverse", 1),
) -> list[NDArray[Any]]:
    """Compile and run a scheduled kernel; see `Kernel`.

    Parameters
    ----------
    func, target, observed
        As for `Kernel`.
    arrays, orders
        As for calling one.

    Returns
    -------
    list of numpy.ndarray
        All arguments afterwards.

    Raises
    ------
    StandInGpuError
        If the kernel does what a GPU does not forgive.
    """
    return Kernel(func, target, observed)(arrays, orders)


def run_cuda(
    source: str,
    arguments: Sequence[NDArray[Any] | np.generic],
    grid: tuple[int, ...] = (1,),
    block: tuple[int, ...] = (32,),
    *,
    capability: int = 75,
    dynamic_shared: int = 0,
    observed: bool = False,
) -> list[NDArray[Any]]:
    """Compile CUDA source and launch its kernel ``run`` once.

    Parameters
    ----------
    source
        CUDA C++ with ``extern "C" __global__ void run(...)``.
    arguments
        Arrays become pointers to copies of them on the device; NumPy scalars stay what they are.
    grid, block
        Of the launch.
    capability
        75, 80 or 90.
    dynamic_shared
        Bytes of dynamic shared memory.
    observed
        Check every access to memory.

    Returns
    -------
    list of numpy.ndarray
        The arrays afterwards.

    Raises
    ------
    StandInGpuError
        If the kernel does what a GPU does not forgive.
    """
    gpu = load()
    gpu.become(capability)
    cuda, cudart = gpu.cuda, gpu.cudart
    image = kernel_image(source, capability, observed)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.check(cuda.cuModuleLoadData(ctypes.byref(module), image))
    gpu.check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"run"))
    values: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            address = ctypes.c_void_p()
            gpu.check(cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(argument.nbytes)))
            contiguous = np.ascontiguousarray(argument)
            gpu.check(_copy(cudart, address, contiguous.ctypes.data, argument.nbytes, 1))
            values.append(address)
        else:
            values.append(np.ctypeslib.as_ctypes(np.asarray(argument)[()]))
    pointers = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values)
    )
    sizes = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block)), dynamic_shared]
    try:
        if dynamic_shared > _DEFAULT_SHARED:
            gpu.check(cuda.cuFuncSetAttribute(function, _DYNAMIC_SHARED_BYTES, dynamic_shared))
        gpu.check(cuda.cuLaunchKernel(function, *map(ctypes.c_uint, sizes), None, pointers, None))
        gpu.check(cudart.cudaStreamSynchronize(None))
        results = []
        for argument, value in zip(arguments, values, strict=True):
            if isinstance(argument, np.ndarray):
                results.append(np.empty_like(argument, order="C"))
                data = results[-1].ctypes.data
                gpu.check(_copy(cudart, data, value, argument.nbytes, 2))
        return results
    finally:
        for argument, value in zip(arguments, values, strict=True):
            if isinstance(argument, np.ndarray):
                cudart.cudaFree(value)


def _copy(cudart: ctypes.CDLL, to: Any, source: Any, size: int, kind: int) -> int:
    pointers = [
        pointer if isinstance(pointer, ctypes.c_void_p) else ctypes.c_void_p(pointer)
        for pointer in (to, source)
    ]
    return int(cudart.cudaMemcpyAsync(*pointers, ctypes.c_size_t(size), kind, None))
