"""Targets by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ibert_tvm.common.errors import TargetError

from .catalogue import CATALOGUE
from .cuda.descriptions import gpu_target, is_gpu_name
from .description import TargetDescription
from .host import host_target
from .machines.record import RUNTIMES

register_target = CATALOGUE.register_target
unregister_target = CATALOGUE.unregister_target


@dataclass(frozen=True)
class TargetStatus:
    """One row of ``ibert targets``: a target, and what this machine can do for it.

    Attributes
    ----------
    name, description
        What it is.
    available
        Whether this machine can compile for it.
    missing
        Why not, and what would make it possible; empty if it can.
    compiler
        Command that compiles and links; empty if there is none. For a GPU nvcc comes first.
    runs
        What runs the result here: ``"this machine"``, the emulator, or the GPU; empty if nothing.
    runs_missing
        What would; empty if something does.
    runtimes, system
        As in `TargetDescription`.
    """

    name: str
    description: str
    available: bool
    missing: str
    compiler: str = ""
    runs: str = ""
    runs_missing: str = ""
    runtimes: tuple[str, ...] = RUNTIMES
    system: str = "linux"


def target_names() -> tuple[str, ...]:
    """All names that :func:`get_target` takes."""
    return ("host", *sorted(CATALOGUE.targets()))


def get_target(name: str) -> TargetDescription:
    """Look a target up by name: one of `target_names`, one that `gpu_target` takes, or a processor.

    A processor that runs another target's code (`TargetDescription.also`) has that target.

    Raises
    ------
    TargetError
        If there is no target of that name; the message lists those there are.
    """
    if name == "host":
        return host_target()
    if (description := CATALOGUE.find(name)) is not None:
        return description
    if is_gpu_name(name):
        return gpu_target(name)
    near = difflib.get_close_matches(name, target_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise TargetError(
        what=f"unknown target {name!r}",
        where="--target",
        why="no target description has that name",
        todo=f"{hint}use one of: {', '.join(target_names())}; or cuda:sm_XX for another GPU",
    )


def list_targets() -> list[TargetStatus]:
    """Every target with what is missing on this machine to compile for it, and to run the result.

    Quick: compilers are asked for their machine, nothing is compiled.
    """
    return [_status(name) for name in target_names()]


def check_runtime(description: TargetDescription, runtime: str | None) -> str:
    """Name of the runtime that a model is compiled for.

    Parameters
    ----------
    description
        The target.
    runtime
        What was asked for; None for the target's default.

    Returns
    -------
    str
        One of ``description.runtimes``.

    Raises
    ------
    TargetError
        If the target has no such runtime.
    """
    if runtime is None:
        return description.runtimes[0]
    if runtime in description.runtimes:
        return runtime
    if runtime not in RUNTIMES:
        raise TargetError(
            what=f"unknown runtime {runtime!r}",
            where="--runtime",
            why="a compiled model is run by TVM's runtime, or by none",
            todo=f"use one of: {', '.join(description.runtimes)}",
        )
    raise TargetError(
        what=f"no runtime {runtime!r} for target {description.name!r}",
        where="--runtime",
        why="there is no package of TVM for this processor, so nothing could load the library, "
        "nor could it be checked here",
        todo="use --runtime none: a library with a plain C interface, which needs nothing but libc",
    )


def _status(name: str) -> TargetStatus:
    # Whoever runs a library needs none of these.
    from .cuda.driver import find_gpu
    from .cuda.toolchain import find_cuda_toolchain
    from .emulation import emulator_command, find_emulator
    from .toolchain import find_linker

    try:
        description = get_target(name)
    except TargetError as error:
        return TargetStatus(name, error.where, False, f"{error.why}; {error.todo}")
    compiler = missing = runs = runs_missing = ""
    try:
        compiler = " ".join(find_linker(description))
        if description.gpu is not None:
            toolchain = find_cuda_toolchain(name, description.gpu.architectures)
            compiler = f"{toolchain.nvcc}, {compiler}"
    except TargetError as error:
        missing = f"{error.why}; {error.todo}"
    try:
        if description.gpu is not None:
            runs = find_gpu(description.gpu)
        elif description.system == "linux":
            runs = " ".join(emulator_command(description)) or "this machine"
        else:
            runs = find_emulator(description)
    except TargetError as error:
        runs_missing = f"{error.why}; {error.todo}"
    return TargetStatus(
        name,
        description.description,
        not missing,
        missing,
        compiler,
        runs,
        runs_missing,
        description.runtimes,
        description.system,
    )
