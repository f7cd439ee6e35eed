"""Schedules: how each kernel runs on each instruction set.

Emission (``ibert_tvm.relay_passes.emit``) writes kernels as plain loops, one block per stage. A
schedule rule knows what the stages reduce and read (`ibert_tvm.schedules.stages`) and the target's
capabilities, but no names of stages and no kinds of kernels; it never changes what a kernel
computes. ``intrinsics`` pairs every instruction with its integer semantics.
"""

from .apply import schedule_kernel, schedule_module
from .errors import ScheduleError
