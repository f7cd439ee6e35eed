"""From CUDA source to a shared library of kernels that run on the CPU.

g++ compiles the source that nvcc would, with the headers of ``on_host`` instead of CUDA's. What a
macro cannot replace is rewritten in the preprocessed text: ``__shared__`` variables become memory
of the block that runs, and a table of the kernels, by which the driver finds them, is added.
"""

from __future__ import annotations

import functools
import re
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ibert_tvm import targets
from tests.arm.tools import needs
from tests.cache import cached
from tests.processes import run_captured

ON_HOST = Path(__file__).with_name("on_host")
DEVICE_CODE = Path(targets.__file__).parent / "cuda" / "device"
ABI_VERSION = 2  # on_host::kAbiVersion

_PREPROCESS = ["-std=c++17", "-DIBERT_ON_HOST", "-w"]
# What every CUDA compiler takes for granted: numbers wrap, and pointers may be of any type.
_COMPILE = ["-std=c++17", "-g1", "-fPIC", "-shared", "-w", "-fwrapv", "-fno-strict-aliasing"]
# Images share nothing, though they have functions of the same names.
_COMPILE += ["-fno-gnu-unique", "-fvisibility=hidden"]
# Vectors stay whole, so that one access of the source is one that is seen.
_OBSERVE = ["-O2", "-fsanitize=thread", "-fno-tree-sra", "-fno-tree-vectorize"]

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\(([^()]*)\)\s*)?(\w+)\s*\(")
_SHARED = re.compile(r"(\bextern\s+)?\b__shared__\s+([^;]*);")
_ALIGNMENT = re.compile(r"^(?:alignas\s*\((\d+)\)|__attribute__\s*\(\(aligned\((\d+)\)\)\))\s*")
_DECLARATION = re.compile(r"^(.*?[\w>])\s+(\w+)\s*((?:\[[^\]]*\]\s*)*)$", re.DOTALL)


class KernelSourceError(Exception):
    """CUDA source that the stand-in GPU cannot take, or g++ refuses."""


def run_compiler(*command: str) -> str:
    """Run g++.

    Parameters
    ----------
    *command
        Program and arguments.

    Returns
    -------
    str
        What it wrote to standard output.

    Raises
    ------
    KernelSourceError
        If it fails.
    """
    done = run_captured(command)
    if done.returncode != 0:
        raise KernelSourceError(f"{' '.join(command)}\n{done.stderr[-6000:]}")
    return done.stdout


@functools.cache
def compiler_version() -> str:
    """What g++ says of itself; skips the test, or fails in CI, where there is none."""
    needs("g++")
    return run_compiler("g++", "--version").splitlines()[0]


def _shared_variable(match: re.Match[str]) -> str:
    """Replacement of one declaration of shared memory."""
    external, text = match[1], match[2].strip()
    alignment = "1"
    if (aligned := _ALIGNMENT.match(text)) is not None:
        alignment = aligned[1] or aligned[2]
        text = text[aligned.end() :]
    declaration = _DECLARATION.match(text)
    if declaration is None or "," in declaration[1]:
        raise KernelSourceError(
            f"cannot read the declaration of shared memory {match[0]!r}: one variable each, "
            f"without an initial value"
        )
    kind, name, extents = declaration[1], declaration[2], declaration[3]
    if external:
        return f"{kind}* const {name} = reinterpret_cast<{kind}*>(on_host_state.dynamic_shared);"
    return (
        f"using {name}_on_host_t = {kind}{extents}; "
        f"static ::on_host::Shared<{name}_on_host_t> {name}_on_host; "
        f"{name}_on_host_t& {name} = {name}_on_host.get({alignment});"
    )


def rewrite(text: str, capability: int, observed: bool) -> str:
    """Rewrite preprocessed CUDA source to C++ for the CPU.

    Parameters
    ----------
    text
        What the preprocessor made of it.
    capability
        75, 80, 90: for the table of kernels.
    observed
        Whether accesses to memory will be reported.

    Returns
    -------
    str
        C++.

    Raises
    ------
    KernelSourceError
        If there is no kernel, or shared memory is declared in a way that is not provided for.
    """
    kernels: dict[str, str] = {}
    for match in _KERNEL.finditer(text):
        kernels[match[2]] = match[1] or kernels.get(match[2], "0")
    if not kernels:
        raise KernelSourceError("no kernel (`__global__ void name(...)`) in the source")
    text = _KERNEL.sub(lambda match: f"void {match[2]}(", text)
    text = _SHARED.sub(_shared_variable, text)
    table = "".join(
        f'  ::on_host::describe<&{name}>("{name}", {bound.split(",")[0]}),\n'
        for name, bound in kernels.items()
    )
    return (
        f"{text}\n"
        f"static const ::on_host::Kernel on_host_kernels[] = {{\n{table}}};\n"
        f'extern "C" __attribute__((visibility("default"))) const ::on_host::Image '
        f"on_host_image = {{{ABI_VERSION}, {capability}, {str(observed).lower()}, {len(kernels)}, "
        f"on_host_kernels}};\n"
    )


def kernel_image(
    source: str,
    capability: int,
    observed: bool = False,
    include: Sequence[Path] = (),
    optimised: bool = False,
) -> bytes:
    """Compile CUDA source for the stand-in GPU.

    Parameters
    ----------
    source
        CUDA C++; may include the headers of ``targets/cuda/device``.
    capability
        75, 80, 90: what ``__CUDA_ARCH__`` says, and what device takes the image.
    observed
        Report every access to memory to the driver, which checks it; several times slower.
    include
        Further folders of headers.
    optimised
        Optimise it, which takes longer than it saves where a small kernel runs once.

    Returns
    -------
    bytes
        What ``cuModuleLoadData`` of the stand-in driver takes.

    Raises
    ------
    KernelSourceError
        If the source is refused.
    """
    from tests.cuda.stand_in_gpu import libraries

    compiler_version()
    folders = [ON_HOST, ON_HOST.parent, DEVICE_CODE, *include]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "kernels.cpp"
        file.write_text(f'#include "kernel_table.h"\n#include "cuda.h"\n{source}', encoding="utf-8")
        preprocessed = run_compiler(
            "g++",
            "-E",
            "-x",
            "c++",
            *_PREPROCESS,
            f"-D__CUDA_ARCH__={10 * capability}",
            *[f"-I{folder}" for folder in folders],
            str(file),
        ).replace(str(file), "kernels.cu")
    text = rewrite(preprocessed, capability, observed)
    options = [*_COMPILE, *(_OBSERVE if observed else ["-O2"] if optimised else ["-O0"])]
    with cached("image", text, *options, compiler_version()) as (place, work):
        if work is not None:
            (work / "kernels.ii").write_text(text, encoding="utf-8")
            # libtsan itself is not wanted: the driver has what its calls call.
            run_compiler(
                "g++",
                "-x",
                "c++-cpp-output",
                *options,
                "-c",
                str(work / "kernels.ii"),
                "-o",
                str(work / "kernels.o"),
            )
            run_compiler(
                "g++",
                "-shared",
                "-o",
                str(work / "kernels.so"),
                str(work / "kernels.o"),
                f"-L{libraries()}",
                "-l:libcuda.so.1",
            )
            # Some 2 MB each, of which the library says the rest.
            for name in ("kernels.ii", "kernels.o"):
                (work / name).unlink()
            return (work / "kernels.so").read_bytes()
        return (place / "kernels.so").read_bytes()


def bundle(images: Sequence[tuple[int, bytes]]) -> bytes:
    """Join images for several capabilities, of which the driver takes the best that it can.

    Parameters
    ----------
    images
        Capability and image of each.
    """
    magic = b"on_host bundle\0\0"
    offset = len(magic) + 8 + 24 * len(images)
    table, parts = b"", b""
    for capability, image in images:
        table += struct.pack("<QQQ", capability, offset + len(parts), len(image))
        parts += image + bytes(-len(image) % 16)
    return magic + struct.pack("<Q", len(images)) + table + parts
