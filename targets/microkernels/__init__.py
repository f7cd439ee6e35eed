"""Microkernels: inner loops in C, where LLVM does not use an instruction well.

A tensor intrinsic (`ibert_tvm.schedules.intrinsics`) calls such a function; its
description, in plain loops, is what the function computes, and tests hold both to it. Which files a
target takes is a field of its description. Each file has the same functions in plain C for other
processors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..description import TargetDescription
from ..programs import output_of
from ..toolchain import find_linker

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c99", "-O2", "-ffreestanding", "-ffunction-sections", "-Wall", "-Wextra", "-Werror")

_DEFINED = re.compile(r"^(?:NAKED )?((?:void|int32_t) (ibert_mk_\w+)\([^)]*\))", re.MULTILINE)


def microkernel_sources(description: TargetDescription) -> tuple[Path, ...]:
    """C files that kernels of a target are linked with; each is complete by itself."""
    return tuple(_FOLDER / name for name in description.microkernels)


def microkernel_symbols(description: TargetDescription) -> tuple[str, ...]:
    """Functions that kernels of a target may call."""
    return tuple(microkernel_prototypes(microkernel_sources(description)))


def microkernel_prototypes(sources: Iterable[Path]) -> dict[str, str]:
    """C declarations of the functions that files define, by name."""
    return {
        name: " ".join(declared.replace("UNUSED ", "").split()) + ";"
        for path in sources
        for declared, name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    }


def compile_microkernels(
    description: TargetDescription, flags: tuple[str, ...] = ()
) -> dict[str, bytes]:
    """Compile the microkernels of a target.

    Parameters
    ----------
    description
        The target.
    flags
        More arguments for the compiler, for example ``-fPIC``.

    Returns
    -------
    dict of str to bytes
        Relocatable objects by the name of their file without ``.c``; a section per function.

    Raises
    ------
    TargetError
        If there is no compiler, or it fails.
    """
    if not description.microkernels:
        return {}
    command = (*find_linker(description), *_FLAGS, *flags, *description.microkernel_flags)
    objects = {}
    with TemporaryDirectory() as folder:
        for source in microkernel_sources(description):
            result = Path(folder) / f"{source.stem}.o"
            arguments = [*command, "-c", str(source), "-o", str(result)]
            output_of(
                arguments,
                what=f"the microkernel {source.name} does not compile",
                where=" ".join(arguments),
                todo="use the compiler that the target names, or a newer one",
            )
            objects[source.stem] = result.read_bytes()
    return objects


def write_microkernels(description: TargetDescription, folder: Path) -> list[str]:
    """Compile the microkernels of a target for a shared library: paths of objects in a folder.

    Raises
    ------
    TargetError
        As `compile_microkernels`.
    """
    flags = description.machine.system.object_flags
    written = []
    for name, content in compile_microkernels(description, flags).items():
        path = folder / f"{name}.o"
        path.write_bytes(content)
        written.append(str(path))
    return written
