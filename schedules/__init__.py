"""Schedules: how each kernel runs on each instruction set.

Emission (``relay_passes.emit``) writes kernels as plain loops, marks each with the attribute
``ibert.kernel`` and gives its blocks fixed names. A schedule rule knows those names and the
target's capabilities; it never changes what a kernel computes. ``intrinsics`` pairs every
instruction with its integer semantics.
"""

from .apply import schedule_kernel, schedule_module
from .errors import ScheduleError

__all__ = ["ScheduleError", "schedule_kernel", "schedule_module"]
