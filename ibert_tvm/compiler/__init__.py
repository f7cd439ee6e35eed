"""Compilation of a quantised model to a library or a package; `compile` is the entry point."""

from .driver import CompiledModel, compile
