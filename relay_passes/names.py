"""Names of values: of the layers, weights and inputs that they come from.

They stand in messages, tables, comments of generated code and names of kernels, so what they are
made of is limited to what means nothing there.
"""

from __future__ import annotations

import re

MAX_NAME = 512
_MAX_SOURCE_NAME = 200
"""Lowering joins two of them, and adds what an array is for."""
NAME = re.compile(rf"[A-Za-z0-9_./:#\[\]-]{{1,{MAX_NAME}}}")
NAME_RULE = f"a name has 1 to {MAX_NAME} letters, digits and characters of _ . / : # [ ] -"


def safe_name(name: str) -> str:
    """Return the name that a source's name becomes: every other character is an underscore.

    Parameters
    ----------
    name
        As the source has it.

    Returns
    -------
    str
        The same wherever it is allowed; the end of one that is too long.
    """
    return re.sub(r"[^A-Za-z0-9_./:#\[\]-]", "_", name)[-_MAX_SOURCE_NAME:] or "_"


def identifier(name: str) -> str:
    """Return a value's name as a part of a function's name, which C and CUDA must take."""
    return re.sub(r"\W", "_", name)
