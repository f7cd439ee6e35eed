"""Errors of importing a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.errors import ModelError

if TYPE_CHECKING:
    from .report import ImportReport


class ModelSourceError(ModelError):
    """A source that cannot be read: wrong path, no model in it, damaged weights."""


class UnsupportedModelError(ModelError):
    """A model that was read but has no canonical form.

    Attributes
    ----------
    report
        What had been recognised up to there.
    """

    report: ImportReport | None = None


def more_than_encoder(name: str, where: str, pools: bool = False) -> ModelSourceError:
    """Return the error of a class whose head would be left out without being asked.

    Parameters
    ----------
    name
        The class.
    where
        What says so.
    pools
        Whether it has a pooled output.
    """
    return ModelSourceError(
        f"{name} computes more than its encoder",
        where=where,
        why="the output of this class is none of the heads that are known",
        todo="choose head='none' for the encoder alone, "
        + "head='pooled' for its pooled output, " * pools
        + "or give a module that returns what you need as a tensor",
    )
