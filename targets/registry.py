"""Targets by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from .arm import ARM_BOARDS
from .cortex_m import CORTEX_M
from .description import TargetDescription
from .errors import TargetError
from .host import host_target
from .toolchain import find_linker
from .x86 import HOSTS

_NAMED: dict[str, TargetDescription] = {
    description.name: description for description in (*HOSTS, *ARM_BOARDS, *CORTEX_M)
}


@dataclass(frozen=True)
class TargetStatus:
    """One row of ``ibert targets``: a target, and whether this machine can compile for it."""

    name: str
    description: str
    available: bool
    missing: str


def target_names() -> tuple[str, ...]:
    """All names that :func:`get_target` takes."""
    return ("host", *sorted(_NAMED))


def get_target(name: str) -> TargetDescription:
    """Look a target up by name.

    Raises
    ------
    TargetError
        If there is no target of that name; the message lists those there are.
    """
    if name == "host":
        return host_target()
    if name in _NAMED:
        return _NAMED[name]
    near = difflib.get_close_matches(name, target_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise TargetError(
        what=f"unknown target {name!r}",
        where="--target",
        why="no target description has that name",
        todo=f"{hint}use one of: {', '.join(target_names())}",
    )


def list_targets() -> list[TargetStatus]:
    """Every target with what is missing on this machine to compile for it."""
    rows = []
    for name in target_names():
        text = ""
        try:
            description = get_target(name)
            text = description.description
            find_linker(description)
        except TargetError as error:
            missing = f"{error.why}; {error.todo}"
            rows.append(TargetStatus(name, text or error.where, False, missing))
        else:
            rows.append(TargetStatus(name, text, True, ""))
    return rows
