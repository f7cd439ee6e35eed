"""Kinds of small quantised models that every place must compute alike: processors, boards, GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.integration import (
    convolution_model,
    distance_models,
    gated_model,
    grouped_model,
    rotary_model,
    row_scale_models,
    sentence_model,
    split_model,
    token_model,
)
from tests.integration.whole_models import Inputs

Case = tuple[str, ...]
PRESETS = ("accurate", "paper")


@dataclass(frozen=True)
class Family:
    """Models of one kind, each a tuple of strings.

    Attributes
    ----------
    models
        All of them.
    model
        Quantises one, of its strings.
    inputs
        What one is run with: of the model and its strings, batch, length, seed, and how many
        tokens the last row has before its padding.
    lengths
        Tokens of those models that take no other number, by their first string.
    images
        First strings of the models that take no ids.
    shape
        Batch and length on boards and GPUs, where the model takes any.
    """

    models: Sequence[Case]
    model: Callable[..., QuantizedModel]
    inputs: Callable[[QuantizedModel, Case, int, int, int, int], Inputs]
    lengths: Mapping[str, int] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    shape: tuple[int, int] = (1, 11)


def _each(names: Sequence[str]) -> list[Case]:
    return list(product(names, PRESETS))


def _plain(make: Callable[..., Inputs]) -> Callable[..., Inputs]:
    """Inputs that are the same for all models of a family."""
    return lambda _model, _case, *shape: make(*shape)


def _named(make: Callable[..., Inputs]) -> Callable[..., Inputs]:
    """Inputs that depend on the first string."""
    return lambda _model, case, *shape: make(case[0], *shape)


FAMILIES = {
    "convolutions": Family(
        _each([*convolution_model.MODELS]),
        convolution_model.convolution_model,
        lambda model, case, batch, _length, seed, _tokens: convolution_model.inputs(
            model, case[0], batch, seed
        ),
        convolution_model.TOKENS,
        ("whisper", "overlap"),
    ),
    "distances": Family(
        _each(distance_models.KINDS),
        distance_models.distance_model,
        _named(distance_models.inputs),
        shape=(3, 40),
    ),
    "gates": Family(
        _each([*gated_model.MODELS]), gated_model.gated_model, _plain(gated_model.inputs)
    ),
    "groups": Family(
        _each([*grouped_model.MODELS]), grouped_model.grouped_model, _plain(gated_model.inputs)
    ),
    "rotations": Family(
        _each([*rotary_model.CONFIGS]),
        rotary_model.rotary_model,
        _plain(rotary_model.inputs),
        shape=(3, 40),
    ),
    "row scales": Family(
        [("gated",), ("bert",)], row_scale_models.row_scale_model, _named(row_scale_models.inputs)
    ),
    "sentences": Family(
        _each([*sentence_model.MODULES]),
        sentence_model.sentence_model,
        _plain(sentence_model.inputs),
    ),
    "split channels": Family([()], split_model.split_model, _plain(split_model.inputs)),
    "tokens": Family(
        _each([*token_model.MODELS]),
        token_model.token_model,
        lambda model, case, *shape: token_model.inputs(model, case[0], *shape),
        token_model.TOKENS,
        tuple(token_model.TOKENS),
    ),
    "wide operands": Family(
        [("gated",), ("bert",)], row_scale_models.wide_model, _named(row_scale_models.inputs)
    ),
}
EVERY = [(name, *case) for name, family in FAMILIES.items() for case in family.models]


class Model:
    """A quantised model by its family and its strings in that.

    Parameters
    ----------
    family
        Name of one of `FAMILIES`.
    *case
        One of its models.
    """

    def __init__(self, family: str, *case: str) -> None:
        self.family, self.case = FAMILIES[family], case
        self.quantised = self.family.model(*case)

    def length(self, otherwise: int) -> int:
        """Its only number of tokens, or another."""
        return self.family.lengths.get(self.case[0], otherwise) if self.case else otherwise

    def inputs(self, batch: int, length: int, seed: int, tokens: int) -> Inputs:
        """What a library takes, ids in 32 bits."""
        arrays = self.family.inputs(
            self.quantised, self.case, batch, self.length(length), seed, tokens
        )
        wide = {name: np.int32 for name, array in arrays.items() if array.dtype == np.int64}
        return {name: array.astype(wide.get(name, array.dtype)) for name, array in arrays.items()}
