"""Names of the presets, for those who name one without its numerics: the command line starts so."""

from __future__ import annotations

PRESET_NAMES = ("accurate", "paper", "released")
