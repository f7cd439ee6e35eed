"""Errors of the target layer: unknown target, missing tool, failed link, unreadable artefact."""

from __future__ import annotations


class TargetError(Exception):
    """A target or toolchain problem, told in four parts.

    Parameters
    ----------
    what, where, why, todo
        What failed, in which place, for which reason, and what the user can do about it.
    """

    def __init__(self, what: str, where: str, why: str, todo: str) -> None:
        self.what, self.where, self.why, self.todo = what, where, why, todo
        super().__init__(f"{what}\n  where: {where}\n  why: {why}\n  what to do: {todo}")
