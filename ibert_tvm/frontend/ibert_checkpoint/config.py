"""The configuration of an `ibert` folder, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...common.strict_json import JsonDict, JsonObject
from ..encoder_builder import SIZES, EncoderConfig
from ..errors import ModelSourceError, UnsupportedModelError

FORCE_DEQUANT = ("none", "gelu", "softmax", "layernorm", "nonlinear")
"""Values of ``force_dequant``: which non-linear functions ran in float during training."""


@dataclass(frozen=True, kw_only=True)
class IbertConfig(EncoderConfig):
    """What ``config.json`` of an `ibert` checkpoint says; absent fields have transformers' values.

    Attributes
    ----------
    quant_mode
        Whether the checkpoint was trained with quantisation.
    force_dequant
        One of `FORCE_DEQUANT`.
    """

    quant_mode: bool
    force_dequant: str

    @property
    def max_sequence_length(self) -> int:
        """Tokens that the positions, which start after the padding's, allow."""
        return self.max_position_embeddings - self.pad_token_id - 1

    def dequantised(self, kind: str) -> bool:
        """Whether a function ("gelu", "softmax", "layernorm") ran in float during training."""
        return self.force_dequant in (kind, "nonlinear")

    @classmethod
    def read(cls, document: JsonObject, file: str) -> IbertConfig:
        """Check a configuration.

        Parameters
        ----------
        document : mapping
            ``config.json``.
        file
            Where it was, for messages.

        Raises
        ------
        ModelSourceError
            If a field has a value that no `ibert` model can have.
        UnsupportedModelError
            If the activation is not GELU.
        """
        values: JsonDict = {}
        for name, default in SIZES.items():
            value = document.get(name, default)
            if type(value) is not int or value < 1:
                raise _wrong(file, name, value, "a positive integer")
            values[name] = value
        pad = document.get("pad_token_id", 1)
        if type(pad) is not int or pad < 0:
            raise _wrong(file, "pad_token_id", pad, "the id of the padding token")
        if values["hidden_size"] % values["num_attention_heads"]:
            raise _wrong(
                file,
                "num_attention_heads",
                values["num_attention_heads"],
                f"a divisor of hidden_size, {values['hidden_size']}",
            )
        if document.get("hidden_act", "gelu") != "gelu":
            raise UnsupportedModelError(
                f"hidden_act is {document['hidden_act']!r}",
                where=file,
                why="an I-BERT encoder has i-GELU and nothing else",
                todo="check config.json",
            )
        force = document.get("force_dequant", "none")
        if force not in FORCE_DEQUANT:
            raise _wrong(file, "force_dequant", force, f"one of {', '.join(FORCE_DEQUANT)}")
        quant_mode = document.get("quant_mode", False)
        if not isinstance(quant_mode, bool):
            raise _wrong(file, "quant_mode", quant_mode, "true or false")
        epsilon = document.get("layer_norm_eps", 1e-12)
        if not isinstance(epsilon, (int, float)) or isinstance(epsilon, bool) or epsilon < 0:
            raise _wrong(file, "layer_norm_eps", epsilon, "a number that is not negative")
        return cls(
            **values,
            pad_token_id=pad,
            layer_norm_eps=float(epsilon),
            quant_mode=quant_mode,
            force_dequant=force,
        )


def _wrong(file: str, name: str, value: Any, allowed: str) -> ModelSourceError:
    return ModelSourceError(
        f"{name} is {value!r}", where=file, why=f"it must be {allowed}", todo="check config.json"
    )
