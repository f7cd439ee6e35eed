"""Why a part of a source has no interpretation."""

from __future__ import annotations

from ...common.errors import ModelError


class Mismatch(ModelError):
    """A rule does not apply; the text is the reason.

    Parameters
    ----------
    reason
        Why.
    op
        The operator to blame where it is not the one that is being interpreted.
    layer
        Its layer.
    """

    def __init__(self, reason: str, op: str = "", layer: str = "") -> None:
        super().__init__(reason)
        self.op = op
        self.layer = layer
