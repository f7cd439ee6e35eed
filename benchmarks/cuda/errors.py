"""What can go wrong on the way to a measurement on a GPU."""

from __future__ import annotations

__all__ = ["GpuBenchmarkError", "NoGpuError"]


class GpuBenchmarkError(Exception):
    """Something cannot be prepared, measured or reported.

    Parameters
    ----------
    what, where, why, todo
        What failed, in which place, for which reason, and what to do about it.
    """

    def __init__(self, what: str, where: str, why: str, todo: str) -> None:
        self.what, self.where, self.why, self.todo = what, where, why, todo
        super().__init__(f"{what}\n  where: {where}\n  why: {why}\n  what to do: {todo}")


class NoGpuError(GpuBenchmarkError):
    """There is no usable GPU, or no driver for it."""
