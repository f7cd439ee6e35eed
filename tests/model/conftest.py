"""Running commands in this process."""

from __future__ import annotations

from tests.cli.conftest import ibert as ibert_command

__all__ = ["ibert_command"]
