"""`ibert targets`: what can be compiled for on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from .result import CommandResult
from .tables import Table, table_of, width

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetStatus


def command(*, verbose: bool = False) -> CommandResult:
    """List the targets, and what is missing on this machine to compile for them.

    Examples
    --------
    ibert targets --verbose
    """
    from ibert_tvm.targets import list_targets

    found = list_targets()
    columns: dict[str, Callable[[TargetStatus], str]] = {
        "target": lambda row: row.name,
        "description": lambda row: row.description if verbose else _short(row.description),
        "compiles": lambda row: "yes" if row.available else "no",
        "runs here": lambda row: _runs(row.runs),
    }
    shown: list[str | Table] = [table_of(found, columns)]
    reasons = [
        (f"{row.name} {verb}", missing)
        for row in found
        for verb, missing in (
            ("is not compiled for here", row.missing),
            ("does not run here", row.runs_missing),
        )
        if missing
    ]
    if reasons and verbose:
        wrapper = TextWrapper(width(), "  ", "  ", break_long_words=False, break_on_hyphens=False)
        shown.append("")
        for head, missing in reasons:
            shown += [f"{head}:", wrapper.fill(missing)]
    elif reasons:
        shown += ["", Table(("missing here", "to"), _needs(found)), "", "-v says more of each"]
    shown += ["", "other NVIDIA GPUs: cuda:sm_XX; several: t4+a100 (docs/targets.md)"]
    return CommandResult({"targets": [asdict(row) for row in found]}, shown)


def _needs(found: Sequence[TargetStatus]) -> list[tuple[str, str]]:
    """In a word or two what is missing, each once, and the targets that need it."""
    users: dict[tuple[str, str], list[str]] = {}
    for row in found:
        if row.missing:
            users.setdefault((_compiler(row.name), "compile for"), []).append(row.name)
        if row.runs_missing:
            users.setdefault((_machine(row.name), "run"), []).append(row.name)
    return [(need, f"{verb} {', '.join(names)}") for (need, verb), names in users.items()]


def _compiler(name: str) -> str:
    from ibert_tvm.targets import TargetError, get_target

    try:
        description = get_target(name)
    except TargetError:  # the host, if it is a machine that is not known
        return "a known processor"
    if description.gpu is not None:
        return "nvcc"
    return "C compiler" if description.toolchain is None else description.toolchain.compiler


def _machine(name: str) -> str:
    """What would run a target's code."""
    from ibert_tvm.targets import cpu_features, get_target, missing_features

    description = get_target(name)
    if description.gpu is not None:
        return "NVIDIA GPU"
    if description.emulator is not None:
        return description.emulator.program
    lacking = missing_features(description, cpu_features())
    return f"processor with {lacking[-1]}" if lacking else "such a processor"


def _short(description: str) -> str:
    """A description without the examples that follow."""
    return description.partition(" (")[0].partition(";")[0]


def _runs(runs: str) -> str:
    """Whether, and by what, a target's code runs here; without the folder of the emulator."""
    if not runs:
        return "no"
    if runs == "this machine":
        return "yes"
    return runs.split()[0].rpartition("/")[2]
