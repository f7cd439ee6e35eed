"""What goes wrong between here and a board."""

from ibert_tvm.common.errors import TargetError


class BoardError(TargetError):
    """A board that cannot be reached, does not answer, or cannot run what it was given."""
