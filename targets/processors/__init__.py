"""Processors to compile for, by family: every target that a module here describes is known."""

from __future__ import annotations

import importlib
import pkgutil

from ..description import TargetDescription

PROCESSORS: tuple[TargetDescription, ...] = tuple(
    value
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
    for value in vars(importlib.import_module(module.name)).values()
    if isinstance(value, TargetDescription)
)
