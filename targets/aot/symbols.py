"""What an object file may leave for the linker to find: an explicit list, and nothing else.

A symbol that nobody defines is not always an error for a linker: weak ones become NULL, and the
program faults when it calls them. So every object is read here before anything is linked.
"""

from __future__ import annotations

from collections.abc import Collection

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription

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
