"""What a page says, read from its HTML."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

_UNITS = {"": 1.0, "%": 0.01, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_NUMBER = re.compile(r"([-+]?[\d,]+(?:\.(\d+))?(?:e([-+]\d+))?) ?(%|B|kB|MB|GB)?")


class Page(HTMLParser):
    """Elements of a page.

    Attributes
    ----------
    numbers
        Pointer, value and text of every ``<data>``.
    bare
        Text in cells of numbers that no ``<data>`` holds, and that is not a number of a row.
    scripts
        Their texts, by what `type` says.
    document
        What the page holds.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.numbers: list[tuple[str, Any, str]] = []
        self.bare: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self._data: dict[str, str | None] | None = None
        self._cell = False
        self._script: str | None = None
        self.feed(html)
        (held,) = (text for kind, text in self.scripts if kind == "application/json")
        self.document: Any = json.loads(held)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "data":
            self._data = given
            self.numbers.append((str(given["data-at"]), json.loads(str(given["value"])), ""))
        if tag == "script":
            self._script = given.get("type") or ""
            self.scripts.append((self._script, ""))
        if tag == "td":
            words = (given.get("class") or "").split()
            self._cell = "number" in words and "plain" not in words

    def handle_endtag(self, tag: str) -> None:
        if tag == "data":
            self._data = None
        if tag == "script":
            self._script = None
        if tag == "td":
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._data is not None:
            pointer, value, text = self.numbers[-1]
            self.numbers[-1] = (pointer, value, text + data)
        elif self._script is not None:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif self._cell and re.search(r"\d", data):
            self.bare.append(data)


def resolve(document: Any, pointer: str) -> Any:
    """Follow a JSON pointer; None where it leads nowhere, as a page shows it."""
    for word in pointer.split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(key)] if isinstance(document, list) else document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def says(text: str, value: Any) -> bool:
    """Whether a text is a value, rounded to the digits that it shows."""
    if value is None:
        return text == "–"
    if isinstance(value, str):
        return text == value
    found = _NUMBER.fullmatch(text.replace("−", "-"))
    if found is None:
        return False
    unit = _UNITS[found[4] or ""]
    shown = float(found[1].replace(",", "")) * unit
    last = 10.0 ** (int(found[3] or 0) - len(found[2] or "")) * unit
    return abs(shown - value) <= last * 0.5000001
