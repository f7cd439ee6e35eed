"""Tiny configurations of the architectures that people bring, as transformers names them.

``architectures.json`` has them in the order of the table: settings that many share as a base, and
on each row those of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DOCUMENT = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Parameters
    ----------
    name : str
        ``model_type``.
    heads : sequence of str
        Heads that are tried besides the bare model.
    model : str, optional
        Class of transformers that makes the model of a configuration; by default ``AutoModel``.
    variant : str
        What tells it from another row of the same architecture.
    classes : mapping of str to str
        Classes of transformers for heads that no automatic class makes.
    base : str
        Settings that it shares with others.
    fields : mapping of str to object
        Those of its own.
    """

    name: str
    heads: tuple[str, ...] = ()
    model: str | None = None
    variant: str = ""
    classes: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name in the table."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def config(self) -> Any:
        """Return the configuration, of transformers."""
        from transformers import AutoConfig

        shared = _DOCUMENT["bases"].get(self.base, {})
        return AutoConfig.for_model(self.name, **{**shared, **self.fields})


ARCHITECTURES = tuple(
    Architecture(**{**row, "heads": tuple(row.get("heads", ()))}) for row in _DOCUMENT["rows"]
)
"""All rows, in the order of the table."""
