"""Choosing the rule for every kernel of a module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from ibert_tvm.targets import TargetDescription

from .attention import AttentionRule
from .cuda import CUDA_RULES
from .errors import ScheduleError
from .finish import (
    keep_whole_vectors,
    with_distinct_variables,
    without_unread_bindings,
    without_zeros,
)
from .key_blocks import skip_key_blocks
from .linear import LinearRule
from .row_guard import guard_rows
from .rows import RowsRule, SerialRule
from .rule import kernel_name
from .stages import NotElementwise
from .tiles import Tile, with_tile, without_tile
from .weight_prefetch import request_panels

log = logging.getLogger(__name__)

Tuned = Callable[[str, tirx.PrimFunc], Tile | None]
"""``tuned(name, kernel)``: decisions on an unscheduled kernel; None for the rule's default."""

# First match wins.
CPU_RULES = (LinearRule(), AttentionRule(), SerialRule(), RowsRule())


def schedule_kernel(
    name: str, func: tirx.PrimFunc, target: TargetDescription, rules: Sequence[Any] | None = None
) -> tirx.PrimFunc:
    """Schedule one kernel with the first rule that takes it.

    Parameters
    ----------
    name
        Name of the kernel, for messages.
    func
        Unscheduled kernel, marked with ``ibert.kernel``.
    target
        What to schedule for.
    rules
        Rules in order of preference; those of processors or GPUs by default.

    Returns
    -------
    tirx.PrimFunc
        Scheduled kernel.

    Raises
    ------
    ScheduleError
        If no rule applies; the message lists every rule's reason.
    """
    if rules is None:
        rules = CPU_RULES if target.gpu is None else CUDA_RULES
    rejections = []
    for rule in rules:
        try:
            result = rule.schedule(func, target)
        except NotElementwise as reason:
            rejections.append(f"{rule.name}: {reason}")
            continue
        log.debug("kernel %s scheduled by rule %s", name, rule.name)
        if isinstance(result, s_tir.Schedule):
            result = _finished(result, name, target)
        return result.with_attr("tirx.is_scheduled", True)
    raise ScheduleError(
        what=f"no schedule for a kernel of kind {kernel_name(func)!r}",
        where=f"kernel {name}, target {target.name}",
        why="; ".join(rejections),
        todo="report this model: a rule is missing",
    )


def _finished(sch: s_tir.Schedule, name: str, target: TargetDescription) -> tirx.PrimFunc:
    """What becomes of the marks that rules for processors leave."""
    func = without_tile(request_panels(guard_rows(skip_key_blocks(sch.mod["main"]), name)))
    func = with_distinct_variables(without_unread_bindings(without_zeros(func)))
    return keep_whole_vectors(func) if target.whole_vectors else func


def schedule_module(
    module: tvm.IRModule, target: TargetDescription, tuned: Tuned | None = None
) -> tvm.IRModule:
    """Schedule every kernel of a module; other functions stay as they are.

    Parameters
    ----------
    module
        With unscheduled kernels.
    target
        What to schedule for.
    tuned
        Gives the decisions that tuning found.

    Raises
    ------
    ScheduleError
        If no rule applies to a kernel.
    """
    functions = {}
    for var, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and kernel_name(func):
            tile = None if tuned is None else tuned(var.name_hint, func)
            if tile is not None:
                func = with_tile(func, tile)
            func = schedule_kernel(var.name_hint, func, target)
        functions[var] = func
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
