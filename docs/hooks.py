"""What turns the documents into a site.

Links that lead out of `docs` become plain text there, and the reason why a block is not run by the
tests, a comment in the document, is shown.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")

_NOT_RUN = re.compile(r"^<!-- not run: (.*?) -->$", re.M)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the text of links to files that the site does not have; show reasons."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if place.startswith("..") else link[0]

    return _LINK.sub(kept, _NOT_RUN.sub(r"*Not run by the tests: it \1.*\n", markdown))
