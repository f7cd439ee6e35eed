"""Summaries of Debian's packages, from the lists that ``apt-get update`` fetches."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from .samples import Sample

__all__ = ["SECTIONS", "sections"]

SECTIONS = (
    "admin", "database", "editors", "electronics", "fonts", "games", "graphics", "hamradio",
    "mail", "math", "net", "science", "sound", "text", "video", "web",
)  # fmt: skip
"""Sections that are topics; others are languages of programming or kinds of files."""


def sections() -> Iterator[Sample]:
    """Summary of a package -> its section; one per source package.

    Raises
    ------
    RuntimeError
        Where there are no lists.
    """
    done = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=False)
    sources: set[str] = set()
    for record in sorted(done.stdout.decode("utf-8").split("\n\n")):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", record, re.MULTILINE))
        section, text = fields.get("Section"), fields.get("Description", "")
        if section not in SECTIONS or len(text.split()) < 3:
            continue
        source = fields.get("Source", fields["Package"]).split()[0]
        if source not in sources:
            sources.add(source)
            yield Sample(source, text, (text, section), section)
    if not sources:
        raise RuntimeError("there are no lists of Debian's packages: run apt-get update")
