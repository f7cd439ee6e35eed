"""What the canonicaliser knows about each tensor of the source graph.

Every tensor is interpreted once, in graph order, as one of these. A `Refusal` is a value too: it
is an error only if an output needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ibert_tvm.relay_passes.canonical import UNBOUNDED

from ...common.errors import ModelError
from .arrays import Array
from .functions import GRID
from .views import Axis, View


class Mismatch(ModelError):
    """A rule does not apply; the text is the reason.

    Parameters
    ----------
    reason : str
        Why.
    op : str
        The operator to blame where it is not the one that is being interpreted.
    layer : str
        Its layer.
    """

    def __init__(self, reason: str, op: str = "", layer: str = "") -> None:
        super().__init__(reason)
        self.op = op
        self.layer = layer


@dataclass(frozen=True, eq=False)
class Value:
    """Base of all interpretations.

    Parameters
    ----------
    ops : tuple of str
        Source operators absorbed since the canonical value that it shows.
    layer : str
        Module path of the nearest parameter before this value.
    """

    ops: tuple[str, ...] = field(default=(), kw_only=True)
    layer: str = field(default="", kw_only=True)

    def after(self, op: str) -> Any:
        """Return the same value with `op` added to what was absorbed."""
        return replace(self, ops=(*self.ops, op))


@dataclass(frozen=True, eq=False)
class Refusal(Value):
    """A tensor without interpretation.

    Parameters
    ----------
    op : str
        The operator that could not be interpreted.
    why : str
        The reason.
    """

    op: str
    why: str


@dataclass(frozen=True, eq=False)
class Given(Value):
    """A tensor that no hidden tensor is part of."""


@dataclass(frozen=True, eq=False)
class FromInputs(Given):
    """A tensor that depends on inputs and constants only: ids, positions, masks.

    Parameters
    ----------
    samples : callable
        Returns its value in every probe run, a list of arrays in the order of the runs; evaluated
        on first use.
    shape : tuple of int
        Its shape in the source graph.
    constant : numpy.ndarray or None
        Its value if it is written in the graph.
    weight : str
        The parameter that it was computed from as well; "" if there is none.
    """

    samples: Callable[[], list[Array]]
    shape: tuple[int, ...]
    constant: Array | None = None
    weight: str = ""


@dataclass(frozen=True, eq=False)
class Weight(Given):
    """A tensor that depends on parameters only, already computed.

    Parameters
    ----------
    name : str
        Source name of the parameter it comes from.
    array : numpy.ndarray
        Its elements; a view of the parameter where possible.
    table : Table or None
        The table that it was cut out of, for as many tokens as the probe shape has.
    """

    name: str
    array: Array
    table: Table | None = None


@dataclass(frozen=True)
class Table:
    """Where a weight with one row per token of the probe shape was cut out: a table of positions.

    Parameters
    ----------
    array : numpy.ndarray
        The whole table [positions, channels].
    offset : int
        Row of the first token.
    """

    array: Array
    offset: int


@dataclass(frozen=True, eq=False)
class Pixels(Value):
    """The images, moved but not computed with.

    Parameters
    ----------
    name : str
        Name of the input.
    view : View
        How the tensor lays them out: atoms batch, plane, row, column.
    """

    name: str
    view: View


@dataclass(frozen=True, eq=False)
class Computed:
    """Where a hidden value comes from.

    Parameters
    ----------
    name : str
        Its canonical name.
    channels : int
        Length of its last axis.
    ops : tuple of str
        Source operators that it replaces.
    """

    name: str
    channels: int
    ops: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Emitted(Computed):
    """A value of the canonical module.

    Parameters
    ----------
    var : relax.Var
        The variable that holds it: [batch, seq_len, channels] or [batch, channels].
    """

    var: relax.Var


@dataclass(frozen=True, eq=False)
class Linear(Computed):
    """A matrix product that still waits for its bias, a scale or a slice.

    Parameters
    ----------
    x : Emitted
        The operand.
    weight : Weight
        [channels, K].
    bias : Weight or None
        [channels].
    """

    x: Emitted
    weight: Weight
    bias: Weight | None

    def changed(self, change: Callable[[Array], Array], part: str = "", **fields: Any) -> Linear:
        """Return the product with its weight and its bias changed alike, along their first axis.

        Parameters
        ----------
        change : callable
            Applied to both arrays.
        part : str
            Behind their names.
        **fields
            Other fields, as for `dataclasses.replace`.

        Returns
        -------
        Linear
            The product as it would be then.
        """

        def changed(weight: Weight) -> Weight:
            return Weight(f"{weight.name}{part}", change(weight.array))

        bias = None if self.bias is None else changed(self.bias)
        return replace(self, weight=changed(self.weight), bias=bias, **fields)


@dataclass(frozen=True, eq=False)
class Embedded(Computed):
    """Rows of a table that may still take a constant row added to all of them.

    Parameters
    ----------
    table : Weight
        [V, channels].
    ids : relax.Var
        Ids [batch, seq_len] in the canonical module.
    """

    table: Weight
    ids: relax.Var


@dataclass(frozen=True, eq=False)
class Affine(Computed):
    """A value whose channels are multiplied, and then added to, by numbers of their own.

    Parameters
    ----------
    x : Emitted
        The value.
    scale, row : Weight or None
        [channels].
    """

    x: Emitted
    scale: Weight | None = None
    row: Weight | None = None


@dataclass(frozen=True, eq=False)
class LinearSum(Computed):
    """A sum of matrix products: that of operands whose channels were joined.

    Parameters
    ----------
    terms : tuple of Linear
        Their bias is that of the first.
    """

    terms: tuple[Linear, ...]


@dataclass(frozen=True, eq=False)
class Joined(Computed):
    """Channels of several hidden tensors one after the other, perhaps for a matrix product.

    Parameters
    ----------
    parts : tuple of Hidden
        The tensors, of one layout but for their channels, which are last.
    """

    parts: tuple[Hidden, ...]


@dataclass(frozen=True, eq=False)
class Prepended(Computed):
    """Tokens with learned rows before them, and perhaps a table of positions added to all.

    Parameters
    ----------
    x : Emitted
        The tokens.
    rows : Weight
        [n, channels].
    table : Weight or None
        [n + tokens, channels].
    """

    x: Emitted
    rows: Weight
    table: Weight | None = None


@dataclass(frozen=True, eq=False)
class TokenRun(Computed):
    """Neighbouring tokens of every sequence.

    Parameters
    ----------
    x : Computed
        The sequences.
    first, last : int
        Places of the first one, and behind the last.
    length : int
        Of a sequence, in the probe shape.
    """

    x: Computed
    first: int
    last: int
    length: int


@dataclass(frozen=True, eq=False)
class ConstantRow(Computed):
    """The same row for every token, waiting to be added to something.

    Parameters
    ----------
    row : Weight
        [channels].
    """

    row: Weight


@dataclass(frozen=True, eq=False)
class Tokens(Value):
    """A hidden tensor, or a scalar function of one."""

    def lifted(self) -> Pointwise:
        """Return it as a function, a hidden tensor as the identity of itself."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Hidden(Tokens):
    """A hidden tensor in some layout.

    Parameters
    ----------
    source : Computed
        The canonical value it shows.
    view : View
        How the tensor lays it out.
    factor : float
        Constant that multiplies the canonical value, from an attention scale applied early.
    missing : Axis
        Atoms that the tensor does not have because the value does not depend on them.
    part : Mixed or None
        The same tensor, before the factor, as lanes of a head that it was cut out of.
    rows : Weight or None
        The same tensor for the probe shape, where it is looked up by position.
    """

    source: Computed
    view: View
    factor: float = 1.0
    missing: Axis = ()
    part: Mixed | None = None
    rows: Weight | None = None

    def lifted(self) -> Pointwise:
        return Pointwise(
            replace(self, factor=1.0, ops=()),
            GRID * self.factor,
            "x" if self.factor == 1.0 else f"{self.factor:g} x",
            ops=self.ops,
            layer=self.layer,
        )


@dataclass(frozen=True, eq=False)
class Term:
    """One channel of a head for each lane, times a factor for each position.

    Parameters
    ----------
    channels : numpy.ndarray
        int64 [lanes], places on the axis of the head.
    factors : numpy.ndarray
        float64 [positions or 1, lanes].
    """

    channels: NDArray[np.int64]
    factors: NDArray[np.float64]

    def at(self, lanes: NDArray[np.int64]) -> Term:
        """Return the term of some lanes."""
        return Term(self.channels[lanes], self.factors[:, lanes])

    def among(self, first: int, last: int, positions: int) -> Term:
        """Return it at some positions, and nothing at the others."""
        factors = np.zeros((positions, self.channels.size))
        factors[first:last] = self.factors
        return Term(self.channels, factors)


@dataclass(frozen=True, eq=False)
class Mixed(Value):
    """Sums of channels of each head, on the way to a rotation; see `mixing`.

    Parameters
    ----------
    base : Hidden
        What the channels are those of.
    axis : int
        Axis of it that enumerates the channels of a head.
    view : View
        Layout of the tensor, with atoms ``lane`` in the place of the channels of a head.
    terms : tuple of Term
        They are added up.
    """

    base: Hidden
    axis: int
    view: View
    terms: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class Pointwise(Tokens):
    """A scalar function of every element of one hidden tensor.

    Parameters
    ----------
    base : Hidden
        The tensor.
    samples : numpy.ndarray
        The function on the grid of `functions.GRID`, float64.
    text : str
        The operators in order, for messages.
    parts : tuple of Value
        The two terms if the last operator was an addition.
    """

    base: Hidden
    samples: NDArray[np.float64]
    text: str
    parts: tuple[Value, ...] = ()

    @property
    def view(self) -> View:
        """Layout, that of its tensor."""
        return self.base.view

    def lifted(self) -> Pointwise:
        return self


@dataclass(frozen=True, eq=False)
class RowFunction(Value):
    """A function of the channels of one token, on the way from a hidden tensor to its LayerNorm.

    Where the tensor has heads in an axis of their own, it is one of the channels of a head.

    Parameters
    ----------
    base : Hidden
        The tensor.
    samples : numpy.ndarray
        The function on the example rows of `rows`, float64 [rows, channels or 1]; with a weight for
        each head [heads, rows, channels or 1].
    text : str
        The operators in order, for messages.
    parts : tuple of Value
        The two terms if the last operator was an addition.
    gammas, betas : tuple of Weight
        The weights that multiplied it and were added to it.
    reduced : bool
        Whether it is one number per row.
    dropped : bool
        Whether the axis of channels is gone, which the next operator has to bring back.
    """

    base: Hidden
    samples: NDArray[np.float64]
    text: str
    parts: tuple[Value, ...] = ()
    gammas: tuple[Weight, ...] = ()
    betas: tuple[Weight, ...] = ()
    reduced: bool = False
    dropped: bool = False


@dataclass(frozen=True, eq=False)
class ScoreTerm:
    """What is done to scores besides their scale.

    Parameters
    ----------
    mask : str or None
        Name of the input that masks keys; None if none does.
    before, after : int
        Window: the largest distance at which a key in front of its query counts, and behind it.
    bias : Weight or None
        Added, by distance: entry d + L - 1 of [1 or heads, 2 L - 1] for d = key - query, L tokens
        of the probe shape; or, where every sequence has as many, by pair: [1 or heads, L, L].
    """

    mask: str | None = None
    before: int = UNBOUNDED
    after: int = UNBOUNDED
    bias: Weight | None = None

    @property
    def masks(self) -> bool:
        """Whether it leaves a key out."""
        return self.mask is not None or min(self.before, self.after) < UNBOUNDED

    def joined(self, other: ScoreTerm) -> ScoreTerm:
        """Return what both together do.

        Raises
        ------
        Mismatch
            If two inputs mask keys.
        """
        if other.mask is not None and self.mask not in (None, other.mask):
            raise Mismatch(f"two inputs mask the keys: {self.mask} and {other.mask}")
        bias = self.bias or other.bias
        if self.bias is not None and other.bias is not None:
            one, more = self.bias.array, other.bias.array
            if one.ndim != more.ndim:
                one, more = by_pair(one), by_pair(more)
            bias = replace(self.bias, array=one + more)
        return ScoreTerm(
            other.mask or self.mask,
            min(self.before, other.before),
            min(self.after, other.after),
            bias,
        )

    @property
    def seen_bias(self) -> Weight | None:
        """The bias with 0 where the window leaves every key out."""
        if self.bias is None:
            return None
        array = self.bias.array
        edge = array.shape[1] // 2
        distance = np.arange(-edge, edge + 1)
        if array.ndim == 3:
            distance = _distances(array.shape[1])
        inside = (distance >= -self.before) & (distance <= self.after)
        return replace(self.bias, array=np.where(inside, array, np.float32(0)))

    def scaled(self, factor: float) -> ScoreTerm:
        """Return what it is where the scores are multiplied afterwards.

        Raises
        ------
        Mismatch
            If it masks keys: what is left of a low score is not known to be low.
        """
        if self.masks:
            raise Mismatch("the scores are scaled after they were masked")
        if self.bias is None:
            return self
        return replace(self, bias=replace(self.bias, array=self.bias.array * np.float32(factor)))


def by_pair(bias: Array) -> Array:
    """A bias of scores, by distance or by pair, as [1 or heads, query, key]."""
    if bias.ndim == 3:
        return bias
    edge = bias.shape[1] // 2
    return bias[:, _distances(edge + 1) + edge]


def _distances(length: int) -> NDArray[np.int64]:
    """Key - query, [query, key]."""
    places = np.arange(length)
    return places[None, :] - places[:, None]


@dataclass(frozen=True, eq=False)
class HeadProducts(Value):
    """Products of the heads of tokens with a constant matrix for each head.

    Parameters
    ----------
    x : Hidden
        The tokens, by head.
    weight : Weight
        [heads, channels of a head, n].
    factor : float
        Of the products.
    view : View
        That of x with `n` columns in the place of the channels.
    """

    x: Hidden
    weight: Weight
    factor: float
    view: View


@dataclass(frozen=True, eq=False)
class PairTerm:
    """Products of the heads of tokens with vectors for their distance to others.

    Parameters
    ----------
    x : Hidden
        The tokens, by head.
    vectors : Weight
        [2 L - 1, channels], row d + L - 1 for d = other token - token, L of the probe shape.
    factor : float
        Of the products.
    view : View
        Layout, with atoms ``sequence`` of the tokens and ``other``.
    """

    x: Hidden
    vectors: Weight
    factor: float
    view: View


@dataclass(frozen=True, eq=False)
class PairTerms(Value):
    """A sum of terms of pairs of tokens, on the way to scores.

    Parameters
    ----------
    terms : tuple of PairTerm
        They are added up.
    view : View
        That of the first.
    """

    terms: tuple[PairTerm, ...]
    view: View


@dataclass(frozen=True, eq=False)
class Scores(Value):
    """Products of queries and keys, scaled, perhaps masked or with a bias.

    Parameters
    ----------
    q, k : Hidden
        The operands, standard layout [batch, seq_len, channels].
    heads : int
        Number of heads.
    scale : float
        Factor so far, of the products alone.
    view : View
        Layout over the atoms batch, head, query, key.
    term : ScoreTerm
        What was added to them or selected of them so far.
    key_positions, query_positions : Weight or None
        Vectors for distances whose products with queries, and with keys, were added to them: [2 L -
        1, channels], row d + L - 1 for d = key - query, L tokens of the probe shape.
    cap : float or None
        Factor so far of their hyperbolic tangent, where that was taken: `scale` and the vectors
        are in front of it, `term` is behind.
    """

    q: Hidden
    k: Hidden
    heads: int
    scale: float
    view: View
    term: ScoreTerm = ScoreTerm()
    key_positions: Weight | None = None
    query_positions: Weight | None = None
    cap: float | None = None

    def scaled(self, number: float, op: str) -> Scores:
        """Return the scores and what was added to them so far, multiplied."""
        if self.cap is not None:
            term = self.term.scaled(number)
            return replace(self, cap=self.cap * number, term=term, ops=(*self.ops, op))
        vectors = {
            label: replace(weight, array=weight.array * number)
            for label in ("key_positions", "query_positions")
            if (weight := getattr(self, label)) is not None
        }
        scale, term = self.scale * number, self.term.scaled(number)
        return replace(self, scale=scale, term=term, ops=(*self.ops, op), **vectors)

    def capped(self, op: str) -> Scores:
        """Return their hyperbolic tangent.

        Raises
        ------
        Mismatch
            If they were capped or masked already, or have a bias.
        """
        if self.cap is not None or self.term.masks or self.term.bias is not None:
            raise Mismatch(
                "scores are capped (softcap) behind their mask, bias or another cap, and only "
                "scaled scores may be: masked keys would count again"
            )
        if self.key_positions is not None or self.query_positions is not None:
            raise Mismatch(
                "scores that are capped (softcap) hold products with vectors by distance"
            )
        return replace(self, cap=1.0, ops=(*self.ops, op))


@dataclass(frozen=True, eq=False)
class Probabilities(Value):
    """Softmax of scores over the keys.

    Parameters
    ----------
    scores : Scores
        What it was taken of.
    view : View
        Its layout.
    """

    scores: Scores
    view: View


@dataclass(frozen=True, eq=False)
class QueryScores(Value):
    """Scores of one query that is a weight, or their softmax; see `learned_query`.

    Parameters
    ----------
    k : Hidden
        The keys.
    name : str
        Of the weight.
    queries : numpy.ndarray
        float64 [heads, channels of a head], scaled as the scores are.
    view : View
        Their layout; there is one query.
    normalised : bool
        Whether they are probabilities.
    """

    k: Hidden
    name: str
    queries: NDArray[np.float64]
    view: View
    normalised: bool = False


@dataclass(frozen=True, eq=False)
class KeptTest(Value):
    """A condition on which scores are masked, on the way to "has this row any key?".

    Parameters
    ----------
    scores : Scores
        The scores that were tested.
    samples : numpy.ndarray
        The condition for the example rows `KEPT_ROWS`.
    """

    scores: Scores
    samples: Array


KEPT_ROWS: NDArray[np.bool_] = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 0, 0]], np.bool_)
"""Example rows of scores: which of three keys are kept. Only the last has none."""


@dataclass(frozen=True, eq=False)
class WeightedTokens(Value):
    """Tokens multiplied by weights, padding by 0, on the way to a pooling.

    Parameters
    ----------
    base : Hidden or Pointwise
        The tokens.
    mask : str
        Name of the input that marks tokens.
    view : View
        Its layout.
    weights : str
        A key of `token_weights.WEIGHTS`.
    """

    base: Hidden | Pointwise
    mask: str
    view: View
    weights: str = "mask"


@dataclass(frozen=True, eq=False)
class MaskedHidden(WeightedTokens):
    """They are not summed yet."""


@dataclass(frozen=True, eq=False)
class TokenSum(WeightedTokens):
    """Their sum over the sequence."""


@dataclass(frozen=True, eq=False)
class FilledHidden(Value):
    """A hidden tensor with very low numbers at padding, on the way to a maximum.

    Parameters
    ----------
    base : Hidden
        The tensor.
    mask : str
        Name of the input that marks tokens.
    view : View
        Its layout.
    """

    base: Hidden
    mask: str
    view: View
