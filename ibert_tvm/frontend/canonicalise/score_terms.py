"""Meaning of what attention scores meet: masks of keys, windows, biases by distance.

Like masks of keys, these are decided by their values in the probe runs: which keys each query sees,
and what is added to the scores that it sees. Exporters build them from tables, buckets, triangles
or comparisons of positions, and mix them with padding; none of that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ibert_tvm.relay_passes.canonical import UNBOUNDED

from ...common.types import Array, Floats
from .inputs import Probes
from .mismatch import Mismatch
from .scores import ScoreTerm
from .values import Given, Weight

ADDED, SUBTRACTED, KEPT, MASKED = "added", "subtracted", "kept", "masked"
"""What happens to scores by a tensor: it is added or subtracted, or where it is not 0 they are kept
or masked."""

# exp(-1000) is 0 in float32 relative to any score of a trained model.
_MASKED_BELOW = -1e3

# Of what is added, relative to the largest term: a function of the distance that was computed from
# two positions in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class ScoreLayout:
    """How scores are laid out in the source.

    Parameters
    ----------
    shape
        Their shape.
    atoms
        The same elements with batch, heads, queries and keys in axes of their own.
    kinds
        Which is which: ``batch``, ``head`` (any number of them), ``query`` and ``key``.
    """

    shape: tuple[int, ...]
    atoms: tuple[int, ...]
    kinds: tuple[str, ...]

    def arranged(self, array: Array) -> Array:
        """Return an array that broadcasts to scores as [batch, head, query, key].

        Axes along which nothing changes have an extent of 1, but that of keys.
        """
        try:
            full = np.broadcast_to(array, self.shape).reshape(self.atoms)
        except ValueError as error:
            raise Mismatch(
                f"a mask of shape {array.shape} does not fit scores {self.shape}"
            ) from error
        heads = [i for i, kind in enumerate(self.kinds) if kind == "head"]
        order = [self.kinds.index("batch"), *heads, *map(self.kinds.index, ("query", "key"))]
        full = full.transpose(order)
        if all(full.strides[i] == 0 for i in range(1, 1 + len(heads))):
            full = full[(slice(None), *[slice(1)] * len(heads))]
        result = full.reshape(full.shape[0], -1, *full.shape[-2:])
        return result[tuple(slice(1 if s == 0 else None) for s in result.strides[:3])]


def as_score_term(
    value: Given, probes: Probes, layout: ScoreLayout, how: str, fixed: bool = False
) -> ScoreTerm:
    """Tell what a tensor does to attention scores.

    Parameters
    ----------
    value
        What the scores meet.
    probes
        The probe runs.
    layout
        Of the scores.
    how
        `ADDED`, `SUBTRACTED`, `KEPT` or `MASKED`.
    fixed
        Whether every sequence has the length of the probe runs.

    Returns
    -------
    ScoreTerm
        A mask, a window, a bias, or any of them together.

    Raises
    ------
    Mismatch
        If it masks by anything but one input's padding and a range of distances, or adds anything
        but a function of head and distance, or of head, query and key if the length is fixed.
    """
    runs = [layout.arranged(array) for array in value.in_every_run(probes)]
    name = value.name or "bias_by_distance"
    if all(run is runs[0] or np.array_equal(run, runs[0]) for run in _distinct(runs)):
        return _by_place(_Parts(runs[0][:1], how), name, fixed)
    reasons = {}
    for mask in probes.names:
        found = _follows(runs, probes, mask, how)
        if not isinstance(found, str):
            return replace(_by_place(found, name, fixed), mask=mask)
        reasons[mask] = found
    if len(set(reasons.values())) == 1:
        raise Mismatch(f"the mask follows none of the inputs: {next(iter(reasons.values()))}")
    each = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise Mismatch(f"the mask follows none of the inputs ({each})")


def _distinct(runs: Sequence[Array]) -> Iterator[Array]:
    """The runs that do not share their memory with the first."""
    first = runs[0].ctypes.data
    return (run for run in runs[1:] if run.ctypes.data != first)


class _Parts:
    """Which scores a term keeps, and what it adds to them: [batch, head, query, key] or 1 each."""

    def __init__(self, run: Array, how: str) -> None:
        self.added = run if how == ADDED else -run if how == SUBTRACTED else None
        self.kept = (run != 0) == (how == KEPT)
        if self.added is not None:
            self.kept = self.added > _MASKED_BELOW


def _follows(runs: Sequence[Array], probes: Probes, name: str, how: str) -> _Parts | str:
    """Return what is done where input `name` is 1 throughout, if else it masks keys by it.

    Returns why not, otherwise.
    """
    whole, nothing = (_Parts(run, how) for run in runs[:2])
    same, opposite = whole.kept.any(), nothing.kept.any()
    for index in probes.binary(name):
        parts = _Parts(runs[index], how)
        if parts.added is not None and whole.added is not None:
            both = parts.kept & whole.kept
            if np.any(both & (parts.added != whole.added)):
                return (
                    f"what is added to the scores is neither 0 nor below {_MASKED_BELOW:g}: it is "
                    "a bias, not a mask"
                )
        tokens = probes.runs[index][name] != 0
        same = same and _masks(parts.kept, whole.kept, tokens)
        opposite = opposite and _masks(parts.kept, nothing.kept, ~tokens)
        heads, queries = parts.kept.shape[1:3]
        if not same and (heads > 1 or (queries > 1 and whole.kept.all())):
            plain = np.broadcast_to(parts.kept[:, :1, :1], parts.kept.shape)
            if not np.array_equal(parts.kept, plain):
                return "what is masked differs between queries or heads"
    if same:
        return whole
    if opposite:
        return "it masks keys with 1 and keeps those with 0, but 1 has to mark tokens"
    return "the masked keys are not those with 0"


def _masks(kept: Array, seen: Array, tokens: Array) -> bool:
    """Tell whether of what is seen without padding the keys that are tokens are kept.

    In a row without tokens libraries differ (uniform weights, all kept); the canonical form gives 0
    there, and nothing depends on it. Nor does anything on queries that are padding, to which some
    sources show no key.
    """
    expected = seen & tokens[:, None, None, :]
    some = expected.any(axis=-1, keepdims=True)
    blind = ~tokens[:, None, :, None] & ~kept.any(axis=-1, keepdims=True)
    return not np.any(some & ~blind & (kept != expected))


def _by_place(parts: _Parts, name: str, fixed: bool) -> ScoreTerm:
    """Window and bias of what does not depend on the inputs."""
    length = parts.kept.shape[-1]
    if np.any(parts.kept != parts.kept[:1, :1]):
        raise Mismatch("what is masked differs between queries or heads")
    seen = np.broadcast_to(parts.kept[0, 0], (length, length))
    before, after = _window(seen)
    term = ScoreTerm(before=before, after=after)
    if parts.added is None or not np.any(parts.kept & (parts.added != 0)):
        return term
    if np.any(parts.kept & (parts.added != parts.added[:1])):
        raise Mismatch("what is added to the scores differs between the rows of a batch")
    added = np.asarray(parts.added[0], np.float32)
    table = _table(np.broadcast_to(added, (len(added), length, length)), seen, fixed)
    return replace(term, bias=Weight(name, table) if table.any() else None)


def _window(seen: Array) -> tuple[int, int]:
    """Largest distances before and after a query at which it sees a key; `seen` [query, key]."""
    length = len(seen)
    if seen.all():
        return UNBOUNDED, UNBOUNDED
    distances = range(1 - length, length)
    diagonals = {d: seen.diagonal(d) for d in distances}
    counting = [d for d in distances if diagonals[d].all()]
    some = [d for d in distances if diagonals[d].any()]
    if counting != some or 0 not in counting or counting[-1] - counting[0] >= len(counting):
        raise Mismatch(
            "what a query sees is no range of distances from it: global tokens, blocks and "
            "dilated windows have no form"
        )
    before, after = -counting[0], counting[-1]
    edge = length - 1
    return (UNBOUNDED if before == edge else before), (UNBOUNDED if after == edge else after)


def _table(added: Floats, seen: Array, fixed: bool) -> Floats:
    """What [heads, query, key] adds by distance, [1 or heads, 2 L - 1]; 0 where none is seen.

    Where that is no function of the distance, by pair, if the length is fixed.
    """
    if np.array_equal(added, np.broadcast_to(added[:1], added.shape)):
        added = added[:1]
    # A softmax does not see what is added to all scores of a query alike.
    own = added.diagonal(axis1=1, axis2=2)[:, :, None]
    for term, allowed in ((added, 0.0), (added - own, _ROUNDING)):
        table, worst = _along_diagonals(term, seen)
        if worst <= allowed * float(np.abs(table).max(initial=0.0)):
            return table
    if fixed:
        return np.where(seen, added, np.float32(0))
    raise Mismatch(
        "what is added to the scores is neither 0 nor a function of the distance between query and "
        "key"
    )


def _along_diagonals(term: Floats, seen: Array) -> tuple[Floats, float]:
    """The first entry of every diagonal, and how far the others are from it."""
    length = len(seen)
    places = np.arange(length)
    table = np.zeros((len(term), 2 * length - 1), np.float32)
    for d in range(1 - length, length):
        query = max(0, -d)
        if seen[query, query + d]:
            table[:, d + length - 1] = term[:, query, query + d]
    again = table[:, places[None, :] - places[:, None] + length - 1]
    error = np.where(seen, np.abs(again - np.where(seen, term, 0)), 0)
    return table, float(error.max(initial=0.0))
