"""What every test of ARM needs: cross-compilers and emulators, and a way to run a library.

CI installs all of them (`.ci/run`), so there a missing one is a failure and never a skip.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.metadata import LibraryMetadata
from ibert_tvm.targets import TargetDescription, TargetError, get_target
from ibert_tvm.targets.emulation import emulator_command, find_emulator
from ibert_tvm.targets.runner import Runner
from ibert_tvm.targets.toolchain import find_linker

_PACKAGES = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "arm-linux-gnueabi-gcc": "gcc-arm-linux-gnueabi libc6-dev-armel-cross",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "qemu-aarch64": "qemu-user",
    "qemu-arm": "qemu-user",
    "qemu-armeb": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "qemu-system-arm": "qemu-system-arm",
    "qemu-system-riscv32": "qemu-system-misc",
    "llvm-objdump": "llvm-14",
    "llvm-objdump-14": "llvm-14",
    "mmdebstrap": "mmdebstrap",
    "llvm-mc-14": "llvm-14",
    "wasm-ld-14": "lld-14",
    "bochs-bin": "bochs bochs-term",
    "cmake": "cmake",
    "pkg-config": "pkg-config",
}
# Debian's llvm-14 has the version in the names of its programs.
_VERSIONS = {"llvm-objdump": [f"llvm-objdump-{version}" for version in range(14, 30)]}
BOARDS = ("rpi4", "aarch64-dotprod", "aarch64-i8mm", "armv7-neon", "armv6-softfloat")
BOARDS += ("rv64gc", "rv64gcv")


def missing(why: str) -> None:
    """Skip the test on a developer's machine, fail it in CI, saying what to install."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have the tools of every target: {why}", pytrace=False)
    pytest.skip(why)


def needs(*tools: str) -> None:
    """Skip the calling test where a tool is missing, saying what to install; fail it in CI.

    Parameters
    ----------
    *tools
        Commands, such as ``qemu-aarch64``.
    """
    absent = [
        tool for tool in tools if not any(map(shutil.which, [tool, *_VERSIONS.get(tool, ())]))
    ]
    if absent:
        packages = " ".join(_PACKAGES.get(tool, tool) for tool in absent)
        missing(f"{', '.join(absent)} not found (Debian: apt-get install {packages})")


def board(name: str, run: bool = True) -> TargetDescription:
    """A target whose compiler, and emulator if `run`, are installed; otherwise as `needs`.

    Parameters
    ----------
    name
        Name of a target.
    run
        Whether its code shall be run here, too.
    """
    description = get_target(name)
    try:
        find_linker(description)
        if run and description.system == "linux":
            emulator_command(description)
        elif run:
            find_emulator(description)
    except TargetError as error:
        missing(f"{error.what}: {error.todo}")
    return description


def with_vectors(bits: int) -> TargetDescription:
    """`rv64gcv` on an emulated processor whose vectors have so many bits; nothing is looked for."""
    target = get_target("rv64gcv")
    return replace(target, emulated=target.emulated.replace("vlen=128", f"vlen={bits}"))


_RUNNERS: dict[tuple[str, str | None], Runner] = {}


def _runner(description: TargetDescription, processor: str | None) -> Runner:
    """The runner of a target, compiled once for all tests."""
    key = (description.name, processor)
    if key not in _RUNNERS or _RUNNERS[key].description != description:
        _RUNNERS[key] = Runner(description, processor)
    return _RUNNERS[key]


def run_library(
    path: Path,
    description: TargetDescription,
    inputs: dict[str, np.ndarray],
    processor: str | None = None,
) -> dict[str, np.ndarray]:
    """Run a library without runtime under the emulator, at the shape of its inputs.

    Parameters
    ----------
    path
        What `ibert compile --runtime none` wrote, for a target whose system is Linux.
    description
        That target.
    inputs
        Arrays by name, [batch, seq_len], of any integer type; a shape that was compiled.
    processor
        Processor to emulate instead of the target's own.

    Returns
    -------
    dict of str to numpy.ndarray
        Integer outputs by name.
    """
    metadata, shape, arrays, outputs = call_of(path, inputs)
    results = _runner(description, processor).run(path, shape, arrays, outputs)
    names = [record.name for record in metadata.outputs]
    return dict(zip(names, results, strict=True))


def call_of(
    path: Path, inputs: dict[str, np.ndarray]
) -> tuple[LibraryMetadata, tuple[int, int], list[np.ndarray], list[tuple[str, tuple[int, ...]]]]:
    """What a library is called with, and what comes out.

    Returns
    -------
    metadata, shape, arrays, outputs
        What the library says of itself; batch and sequence length; inputs in its order and types;
        type and shape of every output.
    """
    metadata = read_metadata(path)
    batch, seq_len = next(iter(inputs.values())).shape[:2]
    extents = {"batch": batch, "seq_len": seq_len}
    arrays = [inputs[record.name].astype(record.dtype) for record in metadata.inputs]
    outputs = [
        (record.dtype, tuple(int(extents.get(str(axis), axis)) for axis in record.shape))
        for record in metadata.outputs
    ]
    return metadata, (batch, seq_len), arrays, outputs
