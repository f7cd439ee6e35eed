"""Exceptions of the compiler passes."""

from __future__ import annotations

from ibert_tvm.common.errors import ExitCode, IbertError


class CompilerError(IbertError):
    """Base of every error that the passes raise; `where` is the layer, operator or pass."""

    exit_code = ExitCode.MODEL

    def at(self, where: str) -> CompilerError:
        """Return the same error with the place filled in, unless it already names one.

        Parameters
        ----------
        where
            The layer or operator, known to the caller but not to the code that failed.

        Returns
        -------
        CompilerError
            An instance of the same class.
        """
        if self.where:
            return self
        return type(self)(self.what, where, self.why, self.todo)


class RangeError(CompilerError):
    """An integer does not fit the width that the specification or the storage gives it."""


class LoweringError(CompilerError):
    """An operator or a model cannot be expressed in the next dialect."""


class IntegerOnlyError(CompilerError):
    """Something that is not an integer is left where only integers may be."""

    exit_code = ExitCode.VERIFICATION


class PresetError(CompilerError):
    """A preset, form or other named choice does not exist."""
