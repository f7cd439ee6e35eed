"""What turns the documents into a site: links that lead out of `docs` become plain text there."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave the text of links to files of the repository, which the site does not have."""
    return _OUTSIDE.sub(r"\1", markdown)
