"""Errors of the canonical dialect."""

from __future__ import annotations

from relay_passes.errors import CompilerError


class CanonicalError(CompilerError):
    """A call or a module breaks a rule of canonical form."""
