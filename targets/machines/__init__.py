"""Processor architectures, one file each: every :class:`Machine` of a module here is known."""

from __future__ import annotations

import importlib
import pkgutil

from .record import Machine

MACHINES: dict[str, Machine] = {
    value.name: value
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
    for value in vars(importlib.import_module(module.name)).values()
    if isinstance(value, Machine)
}
"""The architectures that are built in, by name."""
