"""`ibert doctor`: whether this environment has what the commands need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..common.errors import ExitCode
from .result import CommandResult
from .tables import Table

if TYPE_CHECKING:
    from ..runtime.environment import Check


def command(*, verbose: bool = False) -> CommandResult:
    """Check the environment: extras, versions, compilers, emulators, processor, threads.

    Examples
    --------
    ibert doctor --verbose
    """
    from ..runtime.environment import environment, extras

    checks, enabling = environment(), extras()
    failed = [check for check in checks if check.state == "failed"]

    # The folders of what was found only where they are asked for.
    rows = [(c.state, c.name, c.found if verbose else c.found.partition(" (")[0]) for c in checks]
    shown: list[str | Table] = [
        Table(("", "what", "found"), rows),
        "",
        Table(("", "extra", "enables"), [(e.state, e.name, e.why) for e in enabling]),
        *_advice([*checks, *(enabling if verbose else ())], verbose),
        f"{len(failed)} of {len(checks)} checks failed" if failed else "all is well",
    ]
    document = {
        "ok": not failed,
        "checks": [asdict(check) for check in checks],
        "extras": [asdict(extra) for extra in enabling],
    }
    return CommandResult(document, shown, ExitCode.TARGET if failed else ExitCode.OK)


def _advice(checks: Sequence[Check], verbose: bool) -> list[str | Table]:
    """What to do about all that is missing or failed; why it is, where `verbose`."""
    rows = []
    for check in checks:
        if check.todo:
            rows.append((check.name, check.todo))
        if check.why and verbose:
            rows.append(("" if check.todo else check.name, f"why: {check.why}"))
    return ["", Table(("to have", "do"), rows), ""] if rows else []
