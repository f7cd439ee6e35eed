"""The parsers of untrusted files, each with whole files to begin from and what they mean."""

from __future__ import annotations

from tests.fuzz import artefacts, network, sources
from tests.fuzz.reader import Reader

READERS: dict[str, Reader] = {**artefacts.READERS, **sources.READERS, **network.READERS}
"""By the name of what is read."""
