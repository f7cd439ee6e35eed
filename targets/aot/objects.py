"""Machine code of kernels: one relocatable object per kernel, which holds that kernel alone."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import tvm
from tvm import tirx

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription
from ..linking import Tools, kept_in_memory

# What an object file may leave for the linker to find: an explicit list, and nothing else.
#
# A symbol that nobody defines is not always an error for a linker: weak ones become NULL, and the
# program faults when it calls them. So every object is read here before anything is linked.

MEMORY_FUNCTIONS = frozenset({"memcpy", "memmove", "memset"})
"""What compilers call for copies and zeros; C programs have them, hosted or not."""
LAUNCH = "__TVMBackendParallelLaunch"
"""Where kernels find the function that runs a parallel loop."""


def check_undefined(
    kernel: str,
    undefined: Collection[str],
    description: TargetDescription,
    provided: Collection[str] = (),
) -> None:
    """Refuse an object that calls anything but memory functions and integer helpers.

    Parameters
    ----------
    kernel
        Whose object it is, for the error.
    undefined
        What it leaves undefined.
    description
        The target; decides which helpers there are.
    provided
        Functions that are linked with it: microkernels.

    Raises
    ------
    TargetError
        Naming the symbols.
    """
    allowed = MEMORY_FUNCTIONS | description.machine.integer_helpers | set(provided)
    unknown = sorted(set(undefined) - allowed)
    if not unknown:
        return
    runtime = [name for name in unknown if "TVM" in name]
    why = (
        "it needs TVM's runtime, which code without runtime does not have"
        if runtime
        else "code without runtime may call memory functions, integer helpers of the compiler and "
        "microkernels only: no operating system, no floating point"
    )
    raise TargetError(
        what=f"a kernel calls {', '.join(unknown)}",
        where=f"kernel {kernel}, target {description.name!r}",
        why=why,
        todo="report this model and target; `--runtime tvm` may serve it meanwhile",
    )


def finalise(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Lower what is left of TVM's builtins and intrinsics, and return 0 in the end.

    Parameters
    ----------
    func
        Of `ibert_tvm.targets.aot.lower.lower_kernels`.
    target
        Code generator.

    Returns
    -------
    tvm.tirx.PrimFunc
        For ``target.build.llvm`` or ``target.build.c``.
    """
    name = str(func.attrs["global_symbol"])
    module = tvm.IRModule({name: func.with_attr("target", target)})
    with target:
        lowered = tirx.transform.LowerTVMBuiltin()(module)[name]
        # Not before: that pass puts what it adds round the whole body.
        ending = tirx.Return(tirx.const(0, "int32"))
        whole = lowered.with_body(tirx.SeqStmt([lowered.body, ending]))
        return tirx.transform.LowerIntrin()(tvm.IRModule({name: whole}))[name]


def kernel_object(
    symbol: str, func: tirx.PrimFunc, description: TargetDescription, provided: Collection[str] = ()
) -> tuple[bytes, tuple[str, ...]]:
    """Compile a kernel.

    Parameters
    ----------
    symbol
        Its name.
    func
        Of `ibert_tvm.targets.aot.lower.lower_kernels`.
    description
        What to compile for.
    provided
        Functions that it may call beside memory functions and integer helpers.

    Returns
    -------
    data, undefined
        Relocatable object, its code in a section ``.text.SYMBOL``; and what it leaves undefined.

    Raises
    ------
    TargetError
        If it calls anything else, or the toolchain lacks a tool.
    """
    target = tvm.target.Target(dict(description.tvm_target))
    module = tvm.IRModule({symbol: finalise(func, target)})
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ibert-kernel-")))
        stack.enter_context(kept_in_memory(work / "kernel.o"))
        generate = partial(_generate, module, description, work / "kernel.o")
        if not description.retry_options:
            generate()
        elif not _survives(generate):
            generate(*description.retry_options)
        objects = description.machine.objects
        if objects.dropped_sections:
            _strip(symbol, work, Tools(description), objects.dropped_sections)
        data = (work / "kernel.o").read_bytes()
    undefined = objects.undefined(data)
    check_undefined(symbol, undefined, description, provided)
    return data, undefined


def _strip(symbol: str, work: Path, tools: Tools, dropped: Sequence[str]) -> None:
    """Drop sections of ``kernel.o``, and give its code a section of its own name."""
    command = [tools.binary("objcopy"), "--strip-debug"]
    command += [f"--remove-section={name}" for name in dropped]
    # Named by the unwinding tables that have just been removed.
    command += ["--wildcard", "--strip-symbol=__aeabi_unwind_cpp_pr*"]
    command += [f"--rename-section=.text=.text.{symbol}", "kernel.o", "stripped.o"]
    tools.run(command, work, "cannot strip a kernel")
    (work / "stripped.o").replace(work / "kernel.o")


def _generate(
    module: tvm.IRModule, description: TargetDescription, path: Path, *options: str
) -> None:
    """Write the object of a module."""
    attributes = dict(description.tvm_target)
    if options:
        attributes["cl-opt"] = [*options]
    target = tvm.target.Target(attributes)
    tvm.get_global_func("target.build.llvm")(module, target).write_to_file(str(path), "o")


def _survives(generate: Callable[[], None]) -> bool:
    """Whether code is generated by a child of this process: False if it dies or ends badly."""
    # Python runs hooks around a fork, and would drop what a signal raises in one of them.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the stack that LLVM prints
            generate()
            status = 0
        finally:
            os._exit(status)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return os.waitpid(child, 0)[1] == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
