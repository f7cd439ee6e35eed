"""How a model's kernels are tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..common.errors import UsageError

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address


@dataclass(frozen=True)
class TuneOptions:
    """How to tune.

    Attributes
    ----------
    trials
        Decisions to measure per kernel altogether, those of earlier runs included.
    address
        Board or tracker; None for this machine.
    jobs
        Kernels that are compiled at the same time.
    threads
        Threads that a kernel uses when it is measured.
    time_limit
        Seconds after which no more is begun.
    build_timeout, run_timeout
        Seconds that compiling or measuring one kernel may take.
    seed
        Of the search.
    """

    trials: int
    address: Address | None = None
    jobs: int = 1
    threads: int = 1
    time_limit: float | None = None
    build_timeout: float = 120.0
    run_timeout: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"trials": 1, "jobs": 1, "threads": 1}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UsageError(
                    f"{name} is {getattr(self, name)}", todo=f"give a number of at least {least}"
                )
