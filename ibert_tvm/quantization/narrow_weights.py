"""Matrices in 4 bits: rounded against what the integer program itself computes.

A weight of 8 bits is rewritten in half bytes by groups of its depth with a small scale each
(`ibert_tvm.relay_passes.spec.nibbles`). Its channels keep their scales, so that nothing else of the
program changes but the bias, which makes up for what the product loses in the mean. Rounding is of
second order (`ibert_tvm.quantization.weights`), for activations of the integer program whose
earlier matrices are narrow already. A `Mix` has some of the matrices in 4 bits: those first that
cost least for the bytes that they save.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.integer.evaluate import evaluate, run_step
from ibert_tvm.relay_passes.integer.operators.linear import Linear, NibbleLinear
from ibert_tvm.relay_passes.integer.program import Program, Step
from ibert_tvm.relay_passes.spec import nibbles

from ..common.errors import UsageError
from ..common.types import Array
from ..evaluation.evaluate import vector_of_text
from ..evaluation.metrics import text_errors
from ..model.artefact import QuantizedModel, rebuilt
from ..model.tokenization import Tokenizer
from .batches import Batch, batches_of_arrays, batches_of_texts, packed, spread
from .weights import rounded_in_order

# Of the mean second moment. Little of it fits the calibration texts rather than all.
_DAMPING = 0.1
_MOST_TEXTS = 400
# Batches on which the cost of a matrix is measured, of up to 8 texts.
_MEASURED = 3
_INT32 = np.iinfo(np.int32)


def samples(
    model: QuantizedModel, calibration: Sequence[Any], seq_len: int | None = None
) -> list[Batch]:
    """Make batches for the functions below.

    Parameters
    ----------
    model
        The integer model.
    calibration
        Texts, or batches of token ids, as `ibert_tvm.quantize` takes them.
    seq_len
        Texts are truncated to this many tokens.

    Raises
    ------
    UsageError
        If the model takes images or features, has no tokenizer for texts, or these do not fit it.
    """
    info = model.info
    if info.real_input is not None:
        raise UsageError(
            f"weights of 4 bits of a model of {info.real_input.what}",
            why="they are rounded for integers that come of texts",
            todo="leave --weights out",
        )
    if isinstance(calibration[0], Mapping):
        return batches_of_arrays(calibration, info)
    if not model.tokenizer:
        raise UsageError(
            "texts cannot be tokenised",
            why="the model came without tokenizer files",
            todo="give batches of token ids: --calibration FILE.npz",
        )
    texts = spread(calibration, _MOST_TEXTS)
    return batches_of_texts(texts, Tokenizer(model.tokenizer), info, info.length(seq_len))


def with_narrow_weights(model: QuantizedModel, batches: Sequence[Batch]) -> QuantizedModel:
    """Return the model with the weights of all linear layers in 4 bits.

    Parameters
    ----------
    model
        It is left as it is.
    batches
        What it is calibrated on, from `samples`; of none, weights are rounded to the nearest.

    Raises
    ------
    UsageError
        If it has no weights of 8 bits.
    RangeError
        If a bias would leave int32.
    """
    arrays = dict(model.parameters)
    steps = []
    weights = [arrays[s.operands["weight"]] for s in model.program.steps if _is_wide(s)]
    if all(map(_is_exact, weights)):  # those of a training, which stay as they are
        batches = ()
    moments: dict[str, _Moments] = {}
    run = _Run(model, batches)
    for step in model.program.steps:
        if _is_wide(step):
            x = step.operands["x"]
            if x not in moments:  # queries, keys and values read the same
                moments = {x: run.moments(x, _depth(step, arrays))}
            step = _narrow(step, arrays, moments[x])
        run.compute(step, arrays)
        steps.append(step)
    if not moments:
        raise UsageError(
            "the model has no weights of 8 bits",
            why="no linear layer has any",
            todo="leave --weights out",
        )
    return _noted(rebuilt(model, steps, arrays, {}))


def _noted(model: QuantizedModel) -> QuantizedModel:
    """The model, which says how many matrices have 4 bits."""
    count = sum(isinstance(step.operator, NibbleLinear) for step in model.program.steps)
    note = f"{count} matrices of weights have 4 bits"
    return replace(
        model,
        info=replace(model.info, notes=(*model.info.notes, note)),
        quantization={**model.quantization, "narrow_weights": count},
    )


@dataclass(frozen=True, eq=False)
class Mix:
    """Two forms of one model, of which each matrix has one.

    Attributes
    ----------
    wide, narrow
        With all matrices in 8 and in 4 bits.
    costs
        By the name of a linear layer: the mean error of the outputs with its matrix alone in 4
        bits, by byte that this saves; the smallest first.
    """

    wide: QuantizedModel
    narrow: QuantizedModel
    costs: Mapping[str, float]

    @classmethod
    def of(cls, model: QuantizedModel, batches: Sequence[Batch]) -> Mix:
        """Round all matrices, and measure what each costs; see `with_narrow_weights`."""
        narrow = with_narrow_weights(model, batches)
        mix = cls(model, narrow, {})
        measured = [batch for batch, _ in packed(spread(batches, _MEASURED))]
        wanted = _outputs(model, measured)
        costs = {}
        for step in filter(_is_wide, model.program.steps):
            alone = mix._with({step.name})
            error = float(text_errors(wanted, _outputs(alone, measured)).mean())
            costs[step.name] = error / max(model.num_bytes - alone.num_bytes, 1)
        return cls(model, narrow, dict(sorted(costs.items(), key=lambda item: item[1])))

    def take(self, count: int) -> QuantizedModel:
        """The model with so many matrices in 4 bits."""
        return _noted(self._with(set(list(self.costs)[:count]))) if count else self.wide

    def within_bytes(self, most: int) -> QuantizedModel | None:
        """The model of at most so many bytes with the fewest matrices in 4 bits; None if none."""
        forms = (self.take(count) for count in range(len(self.costs) + 1))
        return next((form for form in forms if form.num_bytes <= most), None)

    def within_drop(
        self, bound: float, measure: Callable[[QuantizedModel], float]
    ) -> QuantizedModel:
        """The model with the most matrices in 4 bits whose drop is within a bound.

        Parameters
        ----------
        bound
            That the wide model keeps within.
        measure
            Drop of a model.
        """
        holds, fails = 0, len(self.costs) + 1
        while fails - holds > 1:
            middle = (holds + fails) // 2
            if measure(self.take(middle)) <= bound:
                holds = middle
            else:
                fails = middle
        return self.take(holds)

    def _with(self, names: Collection[str]) -> QuantizedModel:
        pairs = zip(self.wide.program.steps, self.narrow.program.steps, strict=True)
        steps = [narrow if narrow.name in names else wide for wide, narrow in pairs]
        return rebuilt(self.wide, steps, {**self.wide.parameters, **self.narrow.parameters}, {})


def _outputs(model: QuantizedModel, batches: Sequence[Batch]) -> Array:
    """The first output of each text, [texts, channels]."""
    kind, rows = model.info.outputs[0].kind, []
    for batch in batches:
        outputs = evaluate(model.program, batch.inputs, model.parameters)
        rows += [vector_of_text(kind, *pair) for pair in zip(outputs[0], batch.mask, strict=True)]
    return np.stack(rows)


def _is_wide(step: Step) -> bool:
    return isinstance(step.operator, Linear) and not isinstance(step.operator, NibbleLinear)


@dataclass(frozen=True)
class _Moments:
    """Of the integers of an activation [tokens, K]."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[np.int64]) -> _Moments:
        """Moments of the rows."""
        mean = rows.mean(axis=0)
        centred = (rows - mean).astype(np.float32)
        covariance = (centred.T @ centred).astype(np.float64) / len(rows)
        # Channels that calibration saw next to nothing of count a little, too.
        size = float(np.trace(covariance)) / len(covariance) or 1.0
        covariance[np.diag_indices(len(covariance))] += _DAMPING * size
        return cls(mean, covariance)


class _Run:
    """A program that runs over all batches, step by step."""

    def __init__(self, model: QuantizedModel, batches: Sequence[Batch]) -> None:
        program = model.program
        self._last = {name: place for place, name in _reads(program)}
        self._place = 0
        self._masks = []
        self._values: list[dict[str, Array]] = []
        for batch, _ in packed(batches):
            self._masks.append(batch.mask)
            inputs = program.inputs.items()
            self._values.append({n: batch.inputs[n].astype(t.dtype) for n, t in inputs})

    def moments(self, name: str, channels: int) -> _Moments:
        """Moments of a value's integers at real tokens."""
        if not self._values:
            return _Moments(np.zeros(channels), np.eye(channels))
        rows = []
        for values, mask in zip(self._values, self._masks, strict=True):
            value = values[name]
            by_token = value.ndim == 3 and value.shape[1] == mask.shape[1]
            rows.append(value[mask] if by_token else value.reshape(-1, value.shape[-1]))
        return _Moments.of(np.concatenate(rows).astype(np.int64))

    def compute(self, step: Step, parameters: Mapping[str, Array]) -> None:
        """Run a step, and forget what no later one reads."""
        for values in self._values:
            values[step.name] = run_step(step, {**parameters, **values})
            for name in [n for n in values if self._last.get(n, -1) <= self._place]:
                del values[name]
        self._place += 1


def _reads(program: Program) -> Iterator[tuple[int, str]]:
    """Places of steps, and what each reads."""
    for place, step in enumerate(program.steps):
        for name in step.operands.values():
            yield place, name


def _depth(step: Step, arrays: Mapping[str, Array]) -> int:
    return int(arrays[step.operands["weight"]].shape[1])


def _narrow(step: Step, arrays: dict[str, Array], x: _Moments) -> Step:
    """The step with its weight in 4 bits, whose arrays are added to those of the program."""
    weight = arrays[step.operands["weight"]].astype(np.float64)
    entries, scales = narrow_rows(weight, x.covariance)
    packed = nibbles.pack(entries, scales)
    lost = (weight - nibbles.unpack(*packed, weight.shape[1])) @ x.mean
    bias = np.rint(arrays[step.operands["bias"]] + lost)  # the proof refuses what is clipped
    made = {
        f"{step.name}.narrow.{what}": array
        for what, array in (
            ("weight", packed[0]),
            ("scales", packed[1]),
            ("bias", np.clip(bias, _INT32.min, _INT32.max).astype(np.int32)),
        )
    }
    arrays.update(made)
    operands = {"x": step.operands["x"], **{name.rpartition(".")[2]: name for name in made}}
    return Step(NibbleLinear(step.name), operands, step.type)


def narrow_rows(
    weight: NDArray[np.float64], hessian: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Round a matrix to half bytes by groups.

    Parameters
    ----------
    weight
        Of 8 bits, [N, K].
    hessian
        Second moments of what it is multiplied with, positive definite, [K, K].

    Returns
    -------
    entries
        -8..7, [N, groups, 32].
    scales
        1..16, [N, groups]; an entry times its scale is never -128, which some products take longer
        with.
    """
    columns = weight.shape[1]
    energy = np.diag(hessian)
    scales = _group_scales(_by_group(weight), _by_group(energy[None]))
    steps = np.repeat(scales, nibbles.GROUP, axis=1)[:, :columns].astype(np.float32)
    # What matters most is rounded first, while all other columns can make up for it.
    order = np.argsort(-energy, kind="stable")
    moved = np.ix_(order, order)
    rounded = np.empty(weight.shape, np.int8)
    rounded[:, order] = rounded_in_order(
        weight[:, order],
        steps[:, order],
        (_least(steps[:, order]), nibbles.MOST),
        hessian[moved],
    )
    return _by_group(rounded), scales


def _is_exact(weight: NDArray[np.int8]) -> bool:
    """Whether half bytes have a matrix of 8 bits as it is."""
    groups = _by_group(weight.astype(np.float64))
    scales = _group_scales(groups, np.ones((1, *groups.shape[1:])))[..., None]
    entries = np.rint(groups / scales)
    within = (entries >= _least(scales)) & (entries <= nibbles.MOST)
    return bool((within & (entries * scales == groups)).all())


def _by_group(values: Array) -> Array:
    missing = -values.shape[1] % nibbles.GROUP
    return np.pad(values, ((0, 0), (0, missing))).reshape(len(values), -1, nibbles.GROUP)


def _least(scales: Array) -> Array:
    """Least half byte of a group with this scale."""
    return np.where(scales == nibbles.LARGEST_SCALE, nibbles.LEAST + 1, nibbles.LEAST)


def _group_scales(groups: Array, energy: Array) -> NDArray[np.int64]:
    """Scales [N, groups] with the least weighted squared error of the nearest half bytes."""
    best = np.ones(groups.shape[:2], np.int64)
    smallest = np.full(best.shape, np.inf)
    for scale in range(1, nibbles.LARGEST_SCALE + 1):
        rounded = np.clip(np.rint(groups / scale), _least(np.array(scale)), nibbles.MOST)
        error = ((rounded * scale - groups) ** 2 * energy).sum(axis=2)
        better = error < smallest
        best[better] = scale
        smallest = np.where(better, error, smallest)
    return best
