"""Errors of importing a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibert_tvm.errors import ModelError

if TYPE_CHECKING:
    from ibert_tvm.frontend.report import ImportReport

__all__ = ["MissingExtraError", "ModelSourceError", "UnsupportedModelError"]


class ModelSourceError(ModelError):
    """A source that cannot be read: wrong path, no model in it, damaged weights."""


class MissingExtraError(ModelError):
    """An optional package that this source needs is not installed."""


class UnsupportedModelError(ModelError):
    """A model that was read but has no canonical form.

    Attributes
    ----------
    report : ImportReport or None
        What had been recognised up to there.
    """

    report: ImportReport | None = None
