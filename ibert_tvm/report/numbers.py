"""Numbers of a page, each with the place in the page's document that it is from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ..common.strict_json import JsonObject

NONE = "–"
"""Stands for what a document says is not known."""

_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Numbers:
    """Writes values of a document as elements that say where in it they are.

    Parameters
    ----------
    document : dict
        JSON-able.
    """

    def __init__(self, document: JsonObject) -> None:
        self._document = document

    def at(self, pointer: str) -> Any:
        """Return the value at a JSON pointer (RFC 6901); None where there is none."""
        value: Any = self._document
        for word in pointer.split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                value = value[int(key)] if int(key) < len(value) else None
            elif isinstance(value, Mapping):
                value = value.get(key)
            else:
                return None
        return value

    def shown(self, pointer: str, form: str = "") -> Markup:
        """Return a ``<data>`` element with the value for people.

        Parameters
        ----------
        pointer
            Of a number or a text of the document.
        form
            Of numbers: Python's format, or "bytes".
        """
        value = self.at(pointer)
        return Markup('<data value="{}" data-at="{}">{}</data>').format(
            json.dumps(value), pointer, _text(value, form)
        )


def key(name: str) -> str:
    """Return a name as part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _text(value: Any, form: str) -> str:
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    if form == "bytes":
        for unit, name in _BYTES:
            if value >= unit:
                return f"{value / unit:.1f} {name}"
        return f"{value} B"
    return format(value, form).replace("-", "−")  # the sign, not the hyphen
