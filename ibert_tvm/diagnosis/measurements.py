"""Measure where an integer model loses quality."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..common.strict_json import JsonDict
from ..common.types import Array, Doubles, Longs
from ..evaluation.evaluate import (
    check_pair,
    check_seq_len,
    own_tokenizer,
    vector_of_text,
    with_ids_of,
)
from ..evaluation.metrics import text_errors
from .local import LocalErrors, decibels, ratio
from .mixed import (
    FLOAT,
    INTEGER,
    REQUANTISATION,
    ROUNDING,
    Kinds,
    MixedModel,
    State,
    Treat,
    Treatment,
    Watch,
)
from .places import Place
from .report import Diagnosis, Loss, Suggestion, ValueLoss, WorstText

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel
    from ..model.tokenization import TokenizedBatch


Progress = Callable[[int, int], None]
Kind = tuple[str, str]
Errors = Doubles

_BATCH_TOKENS = 512
# A kind of loss is measured if its noise is at least this share of the largest kind's.
_NOISE = 3e-3
# What is at least this share of the whole error alone is also left out of the integer model.
_SHARE = 0.03
_VALUES = 8
_WORST = 3
# What suggestions try.
_WIDER = 1.25
_FINER = 0.5


def diagnose(
    model: QuantizedModel,
    reference: CanonicalModel,
    texts: Sequence[str],
    seq_len: int = 128,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure where an integer model loses quality.

    Interrupted from the keyboard, it returns what was measured until then, once the model as a
    whole has been.

    Parameters
    ----------
    model
        The integer model.
    reference
        The float model that it was made from.
    texts
        At least one; a dozen says much the same as hundreds, which take hundreds of times as long.
    seq_len
        Truncate them to this many tokens.
    progress
        Called with the runs done and the runs there are.

    Raises
    ------
    UsageError
        If the two models do not belong together, there is no tokenizer, or `seq_len` does not fit.
    """
    check_pair(model.info, reference.info)
    check_seq_len(seq_len, model.info)
    tokenizer = own_tokenizer(model)
    reference = with_ids_of(model.info, reference, tokenizer)
    tokens = tokenizer.encode(texts, max_length=seq_len)
    batches = list(_batches(tokens))
    return _Diagnosis(model, reference, batches, progress).run(texts)


def _batches(tokens: TokenizedBatch) -> Iterator[tuple[Longs, JsonDict]]:
    """Texts of like length, padded to the longest: numbers of the texts, and inputs."""
    lengths = tokens.attention_mask.sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    while len(order):
        count = 1
        while count < len(order) and (count + 1) * lengths[order[count]] <= _BATCH_TOKENS:
            count += 1
        rows, order = order[:count], order[count:]
        width = int(lengths[rows].max())
        yield (
            rows,
            {
                name: np.ascontiguousarray(getattr(tokens, name)[rows, :width])
                for name in ("input_ids", "attention_mask", "token_type_ids")
            },
        )


@dataclass
class _Group:
    """Places of one kind."""

    places: list[Place]
    noise: float = 0.0
    alone: Errors | None = None
    without: Errors | None = None


class _Diagnosis:
    """The measurements of one call of `diagnose`."""

    def __init__(
        self,
        model: QuantizedModel,
        reference: CanonicalModel,
        batches: list[tuple[Longs, JsonDict]],
        progress: Progress | None,
    ) -> None:
        self.mixed = MixedModel(model, reference)
        self.kinds = Kinds(self.mixed)
        self.output = model.info.outputs[0]
        self.batches = batches
        self.texts = sum(len(rows) for rows, _ in batches)
        self.local = {place.key: LocalErrors(self.texts) for place in self.mixed.places}
        self.groups: dict[Kind, _Group] = {}
        self.parts: dict[str, Errors] = {}
        self.by_value: dict[tuple[str, str], list[float | None]] = {}
        self.tried: list[Suggestion] = []
        self._progress = progress
        self._done = 0
        self._runs = 2
        self.float_states: list[State] = []
        self.integer_states: list[State] = []

    def run(self, texts: Sequence[str]) -> Diagnosis:
        """Measure everything."""
        self.expected = self._outputs(lambda place: FLOAT, keep=self.float_states)
        self._advance()
        integers = self.integer_states
        outputs = self._outputs(lambda place: INTEGER, keep=integers, watch=self._noting)
        self.whole = self._errors(outputs)
        self._advance()
        self._sort()
        complete = True
        try:
            self._measure()
        except KeyboardInterrupt:
            complete = False
        losses = [self._loss(kind, group) for kind, group in self.groups.items()]
        return Diagnosis(
            texts=self.texts,
            tokens=sum(int(inputs["attention_mask"].sum()) for _, inputs in self.batches),
            output=self.output.name,
            error=float(self.whole.mean()),
            error_max=float(self.whole.max()),
            rounding=_mean(self.parts.get("rounding")),
            computing=_mean(self.parts.get("computing")),
            losses=tuple(sorted(losses, key=lambda x: (-(x.alone or 0.0), -x.noise))),
            values=tuple(self._value(place) for place in self.mixed.places),
            worst=tuple(self._worst(texts)),
            suggestions=tuple(sorted(self.tried, key=lambda x: x.error)),
            complete=complete,
        )

    # Runs.

    def _outputs(
        self,
        treat: Treat,
        begin: list[State] | None = None,
        first: int = 0,
        keep: list[State] | None = None,
        watch: Callable[[int], Watch] | None = None,
    ) -> Doubles:
        """Vectors of all texts."""
        vectors: list[Doubles] = [np.zeros(0)] * self.texts
        for number, (rows, inputs) in enumerate(self.batches):
            state = None if begin is None else begin[number]
            watched = None if watch is None else watch(number)
            output, made = self.mixed.run(inputs, treat, state, first, watched)
            if keep is not None:
                keep.append(made)
            mask = inputs["attention_mask"]
            for position, row in enumerate(rows):
                vectors[row] = vector_of_text(self.output.kind, output[position], mask[position])
        return np.stack(vectors)

    def _errors(self, vectors: Doubles) -> Errors:
        return text_errors(self.expected, vectors)

    def _noting(self, number: int) -> Watch:
        """Note the errors of every place by itself, in a batch."""
        rows, inputs = self.batches[number]
        mask = inputs["attention_mask"] != 0
        original = self.float_states[number].real

        def watch(place: Place, source: Array, rounded: Array, result: Array) -> None:
            arrays = source, rounded, result, original[place.key]
            per_token = source.ndim == 3 and source.shape[:2] == mask.shape
            for position, row in enumerate(rows):
                real = [
                    array[position][mask[position]] if per_token else array[position]
                    for array in arrays
                ]
                parts = [np.atleast_2d(part).astype(np.float64) for part in real]
                self.local[place.key].add(int(row), place, *parts)

        return watch

    def _alone(self, treat: Treat, places: Sequence[Place]) -> Errors:
        """Errors of the float model but for some places."""
        first = min(self.mixed.number(place) for place in places)
        return self._errors(self._outputs(treat, self.float_states, first))

    def _changed(self, treat: Treat, places: Sequence[Place]) -> Errors:
        """Errors of the integer model but for some places."""
        first = min(self.mixed.number(place) for place in places)
        return self._errors(self._outputs(treat, self.integer_states, first))

    def _advance(self) -> None:
        self._done += 1
        # Until places are known, the number of runs is not.
        if self._progress is not None and self._done > 1:
            self._progress(self._done, max(self._runs, self._done))

    # Order of measuring: what is likely to matter first.

    def _sort(self) -> None:
        found: dict[Kind, _Group] = defaultdict(lambda: _Group([]))
        for place in self.mixed.places:
            local = self.local[place.key]
            for kind in (self.kinds.rounding(place), self.kinds.computing(place)):
                found[kind].places.append(place)
                found[kind].noise += local.noise(kind[0] == ROUNDING)
        ordered = sorted(found.items(), key=lambda item: -item[1].noise)
        self.groups = {kind: group for kind, group in ordered if group.noise > 0}

    def _measure(self) -> None:
        largest = max((group.noise for group in self.groups.values()), default=0.0)
        measured = {k: g for k, g in self.groups.items() if g.noise >= _NOISE * largest}
        self._runs = 2 + 2 + 2 * len(measured) + 2 * _VALUES + 4
        places = self.mixed.places
        for name, treatment in (
            ("rounding", Treatment(True, False)),
            ("computing", Treatment(False, True)),
        ):
            self.parts[name] = self._alone(lambda place, t=treatment: t, places)  # type: ignore[misc]
            self._advance()
        for kind, group in measured.items():
            group.alone = self._alone(_only(kind, group, FLOAT, True), group.places)
            self._advance()
        serious = {
            kind: group
            for kind, group in measured.items()
            if group.alone is not None and group.alone.mean() >= _SHARE * self.whole.mean()
        }
        chosen = self._chosen()
        self._runs = self._done + len(serious) + 2 * len(chosen) + 4
        for kind, group in serious.items():
            group.without = self._changed(_only(kind, group, INTEGER, False), group.places)
            self._advance()
        for place in chosen:
            entry: list[float | None] = [None, None]
            self.by_value[place.key] = entry
            entry[0] = float(self._alone(_at([place], INTEGER, FLOAT), [place]).mean())
            self._advance()
            entry[1] = float(self._changed(_at([place], FLOAT, INTEGER), [place]).mean())
            self._advance()
        self._suggest(serious)
        self._runs = self._done
        if self._progress is not None:
            self._progress(self._done, self._runs)

    def _chosen(self) -> list[Place]:
        """Places that are likely to matter most: their share of what their kind costs alone."""
        shares: dict[tuple[str, str], float] = defaultdict(float)
        for (what, _), group in self.groups.items():
            if group.alone is None:
                continue
            for place in group.places:
                noise = self.local[place.key].noise(what == ROUNDING)
                shares[place.key] += float(group.alone.mean()) * noise / group.noise
        best = sorted(self.mixed.places, key=lambda place: -shares[place.key])
        return [place for place in best[:_VALUES] if shares[place.key] > 0]

    # Suggestions.

    def _suggest(self, serious: dict[Kind, _Group]) -> None:
        constant = [
            place
            for place in self.mixed.places
            if self.kinds.computing(place)[0] == REQUANTISATION
            and self.kinds.feeds_matrix(place)
            and self.local[place.key].computing.any()
        ]
        self._try(
            "biases take off what requantisation adds in the mean: --fidelity default, where it "
            "was fast",
            {
                place.key: Treatment(True, True, offset=self.local[place.key].mean_error)
                for place in constant
            },
        )
        roundings = {kind: group for kind, group in serious.items() if kind[0] == ROUNDING}
        clipped = [
            place
            for group in roundings.values()
            for place in group.places
            if self.local[place.key].clipped_share > 0
        ]
        self._try(
            f"ranges {_WIDER} times as wide where values are clipped, {len(clipped)} of them: "
            "--calibration with texts like these, or --observer minmax, where it is another",
            {place.key: Treatment(True, True, _WIDER, _WIDER) for place in clipped},
        )
        order = sorted(roundings.items(), key=lambda item: -(_mean(item[1].alone) or 0.0))
        for (_, where), group in order[:2]:
            self._try(
                f"steps half as large over the same range, {where}: --fidelity best, with which "
                "layers read 16 bits",
                {place.key: Treatment(True, True, _FINER) for place in group.places},
            )

    def _try(self, change: str, treatments: dict[tuple[str, str], Treatment]) -> None:
        places = [place for place in self.mixed.places if place.key in treatments]
        if places:
            errors = self._changed(lambda p: treatments.get(p.key, INTEGER), places)
            self.tried.append(Suggestion(change, float(errors.mean())))
        self._advance()

    # What is reported.

    def _loss(self, kind: Kind, group: _Group) -> Loss:
        what, where = kind
        result = Loss(what, where, len(group.places), group.noise, without=_mean(group.without))
        if group.alone is None:
            return result
        return replace(result, alone=_mean(group.alone), alone_max=float(group.alone.max()))

    def _value(self, place: Place) -> ValueLoss:
        local = self.local[place.key]
        alone, without = self.by_value.get(place.key, (None, None))
        signal = float(local.signal.sum())
        return ValueLoss(
            value=place.value,
            form=place.form,
            rounding_snr=decibels(float(local.rounding.sum()), signal),
            operator_snr=decibels(float(local.computing.sum()), signal),
            snr=decibels(local.total, local.reference),
            clipped=local.clipped_share,
            constant=local.constant,
            alone=alone,
            without=without,
        )

    def _worst(self, texts: Sequence[str]) -> Iterator[WorstText]:
        measured = {k: g.alone for k, g in self.groups.items() if g.alone is not None}
        if not measured:
            return
        for text in np.argsort(-self.whole)[:_WORST].tolist():
            kind = max(measured, key=lambda kind: float(measured[kind][text]))

            def noise(place: Place, what: str = kind[0], text: int = text) -> float:
                local = self.local[place.key]
                error = local.error(what == ROUNDING)
                return ratio(float(error[text]), float(local.signal[text]))

            def clipped(place: Place, text: int = text) -> float:
                local = self.local[place.key]
                return float(local.clipped[text] / max(int(local.entries[text]), 1))

            most = max(self.mixed.places, key=clipped)
            yield WorstText(
                text=texts[text],
                error=float(self.whole[text]),
                what=kind[0],
                where=kind[1],
                alone=float(measured[kind][text]),
                value=max(self.groups[kind].places, key=noise).value,
                clipped_value=most.value if clipped(most) > 0 else None,
                clipped=clipped(most),
            )


def _only(kind: Kind, group: _Group, otherwise: Treatment, present: bool) -> Treat:
    """Switch one kind of loss on, or off, and leave the rest."""
    what = "rounded" if kind[0] == ROUNDING else "computed"
    changed = replace(otherwise, **{what: present})  # type: ignore[arg-type]
    return _at(group.places, changed, otherwise)


def _at(places: Sequence[Place], treatment: Treatment, otherwise: Treatment) -> Treat:
    chosen = {id(place) for place in places}
    return lambda place: treatment if id(place) in chosen else otherwise


def _mean(errors: Errors | None) -> float | None:
    return None if errors is None else float(errors.mean())
