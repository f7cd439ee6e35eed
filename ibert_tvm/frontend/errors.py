"""Errors of importing a model."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from ..common.errors import ModelError

if TYPE_CHECKING:
    from .report import ImportReport


class ModelSourceError(ModelError):
    """A source that cannot be read: wrong path, no model in it, damaged weights."""


class MissingExtraError(ModelError):
    """An optional package that this source needs is not installed."""


class UnsupportedModelError(ModelError):
    """A model that was read but has no canonical form.

    Attributes
    ----------
    report
        What had been recognised up to there.
    """

    report: ImportReport | None = None


def require(*packages: str, to: str, why: str, todo: str, where: str = "ibert_tvm.load") -> None:
    """Refuse to go on without some packages that an extra brings.

    Parameters
    ----------
    *packages
        What is needed, as it is imported.
    to
        What it is needed for, as the subject of "... needs torch".
    why, todo, where
        See `ibert_tvm.common.errors.IbertError`.

    Raises
    ------
    MissingExtraError
        Naming the first that is not installed.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            what = f"{to} needs {package}, which is not installed"
            raise MissingExtraError(what, where, why, todo)


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
