"""Settings of a fine-tuning; the defaults are the recipe of I-BERT's paper."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..common.errors import UsageError, check_choice
from ..common.strict_json import JsonDict

DISTILLATIONS = ("none", "logits", "embeddings")
TRAINED = ("all", "vectors")
BITS = ("8", "4")
# What rounds to 4 bits has steps sixteen times as long; decay would pull all weights inwards.
_BY_BITS: dict[str, dict[str, float]] = {
    "8": {"learning_rate": 2e-6, "scale_learning_rate": 1e-2, "weight_decay": 0.1},
    "4": {"learning_rate": 3e-5, "scale_learning_rate": 1e-3, "weight_decay": 0.0},
}


def _between(least: float, default: float | None, most: float) -> Any:
    """A field with a default, and its bounds; None for what depends on the bits of weights."""
    return field(default=default, metadata={"bounds": (least, most)})


@dataclass(frozen=True)
class FinetuneSettings:
    """How a model is tuned: in float first, then with integers.

    The paper's recipe (section 4.1): full precision first, then integers only, learning rates of
    5e-7 to 2e-6, dropout 0 or 0.1, 6 epochs for the large tasks of GLUE and 12 for the small.

    Parameters
    ----------
    preset
        Numerics.
    float_epochs
        Epochs in float before those with integers; 0 for a model that is tuned already.
    epochs
        Epochs with integers; the paper has 6 or 12.
    float_learning_rate
        Largest one in float.
    learning_rate
        Largest one with integers; the paper has 5e-7 to 2e-6. [default: 2e-6; 3e-5 with --weights
        4]
    scale_learning_rate
        Largest one of the logarithms of scales, where they are trained. [default: 1e-2; 1e-3 with
        --weights 4]
    dropout
        In float; the paper has 0 or 0.1.
    batch_size
        Examples of a forward pass.
    accumulation
        Forward passes of a step.
    weight_decay, warmup
        Of AdamW (by default 0.1, and 0 for weights of 4 bits), and share of the steps in which a
        learning rate grows; it falls to 0 in the rest.
    seq_len
        Truncate texts to this many tokens.
    seed
        Of everything random.
    distillation : {"none", "logits", "embeddings"}
        Learn what the float model gives, too; or alone, without labels.
    patience
        End a stage after so many epochs without a better dev set; 0: never.
    trained : {"all", "vectors"}
        With integers: all weights; or biases and norms alone, for a learning rate of 1e-3 or so.
    learn_scales
        Train the scales of activations, too.
    calibration
        Training texts that scales are chosen from.
    checkpoint_steps
        Steps between two checkpoints.
    weights : {"8", "4"}
        Bits of the matrices of linear layers: 8, or 4 with a learned scale for every 32 entries of
        a row, for `ibert quantize --weights 4`.
    word_table_bits : {"8", "4"}
        Bits that the table of words will have, for `ibert quantize --word-table-bits`; one of 4
        bits is not trained.

    Raises
    ------
    UsageError
        If a setting is out of range.
    """

    preset: str = "accurate"
    float_epochs: int = _between(0, 3, 10_000)
    epochs: int = _between(1, 6, 10_000)
    float_learning_rate: float = _between(0, 2e-5, 1)
    learning_rate: float = _between(0, None, 1)
    scale_learning_rate: float = _between(0, None, 1)
    dropout: float = _between(0, 0.1, 0.9)
    batch_size: int = _between(1, 16, 65_536)
    accumulation: int = _between(1, 1, 65_536)
    weight_decay: float = _between(0, None, 1)
    warmup: float = _between(0, 0.06, 1)
    seq_len: int = _between(2, 128, 65_536)
    seed: int = _between(0, 0, 2**31 - 1)
    distillation: str = "none"
    patience: int = _between(0, 0, 10_000)
    trained: str = "all"
    learn_scales: bool = False
    calibration: int = _between(1, 256, 1_000_000)
    checkpoint_steps: int = _between(1, 100, 10**9)
    weights: str = "8"
    word_table_bits: str = "8"

    def __post_init__(self) -> None:
        check_choice("number of bits of weights", self.weights, BITS)
        check_choice("number of bits of the table of words", self.word_table_bits, BITS)
        for name, value in _BY_BITS[self.weights].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for item in fields(self):
            if "bounds" not in item.metadata:
                continue
            value, (least, most) = getattr(self, item.name), item.metadata["bounds"]
            if not (math.isfinite(value) and least <= value <= most):
                raise UsageError(
                    f"{item.name.replace('_', ' ')} is {value}",
                    why=f"it lies from {least} to {most}",
                )
        check_choice("distillation", self.distillation, DISTILLATIONS)
        check_choice("choice of what is trained", self.trained, TRAINED)
        if self.weights == "4":
            self._check_narrow()

    def _check_narrow(self) -> None:
        if self.trained != "all":
            raise UsageError(
                f"--weights 4 together with --train {self.trained}",
                why="the half bytes are what is trained",
                todo="leave one of them out",
            )
        if self.learn_scales:
            raise UsageError(
                "--weights 4 together with --learn-scales",
                why="the scales of groups of weights are learned instead of those of activations",
                todo="leave one of them out",
            )
        if self.preset == "released":
            raise UsageError(
                "--weights 4 together with the preset released",
                why="its matrices are those of its checkpoint",
                todo="give the preset accurate or paper",
            )

    def to_json(self) -> JsonDict:
        """All settings by name."""
        return asdict(self)
