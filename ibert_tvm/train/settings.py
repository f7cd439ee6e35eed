"""Settings of a fine-tuning; the defaults are the recipe of I-BERT's paper."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..common.errors import UsageError, check_choice
from ..common.strict_json import JsonDict

DISTILLATIONS = ("none", "logits", "embeddings")
TRAINED = ("all", "vectors")


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
        Largest one with integers; the paper has 5e-7 to 2e-6.
    scale_learning_rate
        Largest one of the logarithms of scales, where they are trained.
    dropout
        In float; the paper has 0 or 0.1.
    batch_size
        Examples of a forward pass.
    accumulation
        Forward passes of a step.
    weight_decay, warmup
        Of AdamW, and share of the steps in which a learning rate grows; it falls to 0 in the rest.
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

    Raises
    ------
    UsageError
        If a setting is out of range.
    """

    preset: str = "accurate"
    float_epochs: int = 3
    epochs: int = 6
    float_learning_rate: float = 2e-5
    learning_rate: float = 2e-6
    scale_learning_rate: float = 1e-2
    dropout: float = 0.1
    batch_size: int = 16
    accumulation: int = 1
    weight_decay: float = 0.1
    warmup: float = 0.06
    seq_len: int = 128
    seed: int = 0
    distillation: str = "none"
    patience: int = 0
    trained: str = "all"
    learn_scales: bool = False
    calibration: int = 256
    checkpoint_steps: int = 100

    def __post_init__(self) -> None:
        for name, least, most in (
            ("float_epochs", 0, 10_000),
            ("epochs", 1, 10_000),
            ("float_learning_rate", 0, 1),
            ("learning_rate", 0, 1),
            ("scale_learning_rate", 0, 1),
            ("dropout", 0, 0.9),
            ("batch_size", 1, 65_536),
            ("accumulation", 1, 65_536),
            ("weight_decay", 0, 1),
            ("warmup", 0, 1),
            ("seq_len", 2, 65_536),
            ("seed", 0, 2**31 - 1),
            ("patience", 0, 10_000),
            ("calibration", 1, 1_000_000),
            ("checkpoint_steps", 1, 10**9),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= most):
                raise UsageError(
                    f"{name.replace('_', ' ')} is {value}", why=f"it lies from {least} to {most}"
                )
        check_choice("distillation", self.distillation, DISTILLATIONS)
        check_choice("choice of what is trained", self.trained, TRAINED)

    def to_json(self) -> JsonDict:
        """All settings by name."""
        return asdict(self)
