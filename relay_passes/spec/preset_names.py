"""Names of the presets, for those who name one without its numerics: the command line starts so."""

PRESET_NAMES = ("accurate", "paper", "released")
