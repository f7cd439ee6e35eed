"""What is known of an encoder's results, for those who are given it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Measurements:
    """What evaluators of sentence-transformers measured of an encoder.

    Attributes
    ----------
    metrics
        Numbers by name.
    """

    metrics: dict[str, float] = field(default_factory=dict)

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        """Keep what an evaluator found; it calls this itself."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})
