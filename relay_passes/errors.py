"""Exceptions of the compiler passes.

Every message answers four questions: what went wrong, where (layer, operator, pass), why, and what
to do about it. ``ibert_tvm`` maps these classes to exit codes; nothing here knows about them.
"""

from __future__ import annotations


class CompilerError(Exception):
    """Base of every error the passes raise on purpose.

    Parameters
    ----------
    what : str
        What failed, in one phrase.
    where : str
        The layer, operator or pass, under the name the source model uses.
    why : str
        The facts that make it fail: the numbers, the types.
    todo : str
        What the user can do about it.
    """

    def __init__(self, what: str, where: str = "", why: str = "", todo: str = "") -> None:
        self.what = what
        self.where = where
        self.why = why
        self.todo = todo
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The whole text: one line per question that has an answer."""
        lines = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("what to do", self.todo)):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)

    def at(self, where: str) -> CompilerError:
        """Return the same error with the place filled in, unless it already names one.

        Parameters
        ----------
        where : str
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


class DocumentError(CompilerError):
    """A document says what its format does not allow."""


class PresetError(CompilerError):
    """A preset, form or other named choice does not exist."""
