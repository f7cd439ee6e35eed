"""Errors of the canonical dialect."""

from __future__ import annotations


class CanonicalError(Exception):
    """A module is not in canonical form.

    Parameters
    ----------
    what : str
        What is wrong, one sentence without a full stop.
    where : str
        The canonical name, operator or parameter concerned.
    why : str
        The rule that is broken.
    fix : str
        What the reader can do about it.
    """

    def __init__(self, what: str, *, where: str, why: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  why: {why}\n  what to do: {fix}")
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
