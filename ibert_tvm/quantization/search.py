"""Search for the cheapest way of quantising that keeps within a drop of quality.

A *recipe* is a set of calibration settings. Recipes are tried in the order of what the program that
they lead to costs at run time, until one holds the bound on texts that calibration did not see.
Where it gives matrix operands another form than the recipe before, which does not hold it, the two
are mixed then: only as many operands as it takes get the dearer form, those first whose products
gain most for what it costs. What a drop is says a function, so that any metric serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ..common.errors import UsageError, VerificationError
from ..common.strict_json import JsonDict, JsonObject
from ..model.artefact import QuantizedModel
from .batches import Calibration, Text
from .fidelity import options_of
from .options import CalibrationOptions
from .post_training import assemble, calibrate

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.integer.program import Program
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend import CanonicalModel
    from ..model.tokenization import Tokenizer

Measure = Callable[[QuantizedModel], float]
"""The drop of an integer model: 0 for none, larger for worse."""

# Every fifth text is held back.
_HELD_BACK = 5
# Measurements of mixes: the number of operands is found to a sixteenth of all.
_MIXES = 4
# An entry that is requantised, normalised or looked up, in multiply-adds: about what it takes where
# an instruction multiplies 64 bytes, and where it multiplies two.
_ENTRY = 32
# Products with activations of 16 bits beside those with 8: as many where the target multiplies 16
# bits, with activations of twice the size, and twice as many where it multiplies bytes.
_SHORT_PRODUCT, _PRODUCT_OF_PARTS = 1.03, 2.0

_RECIPES: Mapping[str, tuple[str, JsonDict]] = {
    "fast": ("fast", {}),
    "default, no wider products": ("default", {"split_share": 0.0, "wide_values": False}),
    "default": ("default", {}),
    "default, 1/12 more columns": ("default", {"split_share": 1 / 12}),
    "default, 1/8 to 1/6 more columns": (
        "default",
        {"split_share": 1 / 8, "copied_share": 1 / 6},
    ),
    "best": ("best", {}),
}


@dataclass(frozen=True)
class Trial:
    """One recipe that was tried.

    Attributes
    ----------
    recipe
        What it is called.
    work
        Predicted cost of a token, in multiply-adds (`work_per_token`).
    drop
        What was measured.
    holds
        Whether that is within the bound.
    """

    recipe: str
    work: int
    drop: float
    holds: bool


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a search.

    Attributes
    ----------
    model
        The cheapest that holds the bound.
    recipe
        Its recipe.
    trials
        All that were measured, in the order in which they were.
    """

    model: QuantizedModel
    recipe: str
    trials: tuple[Trial, ...]

    def to_json(self) -> list[JsonDict]:
        """Return the trials for a document."""
        return [asdict(trial) for trial in self.trials]


def hold_back(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Split texts, or pairs, in those to calibrate on and, every fifth, those to measure on.

    Raises
    ------
    UsageError
        If there are too few.
    """
    held = list(texts[_HELD_BACK - 1 :: _HELD_BACK])
    if len(held) < 2:
        raise UsageError(
            f"{len(texts)} texts are too few to hold some back",
            why="a drop is measured on texts that calibration does not see, every fifth",
            todo=f"give {2 * _HELD_BACK} texts or more, or others to measure on (--heldout)",
        )
    kept = [text for number, text in enumerate(texts) if number % _HELD_BACK != _HELD_BACK - 1]
    return kept, held


def cosine_drop(
    reference: CanonicalModel,
    texts: Sequence[Text],
    seq_len: int | None = None,
) -> Measure:
    """Return the measure 1 - mean cosine between the outputs of both models (`text_errors`).

    Parameters
    ----------
    reference
        The float model.
    texts
        To measure on.
    seq_len
        They are truncated to this many tokens.
    """
    from ..evaluation.evaluate import fidelity

    def measure(model: QuantizedModel) -> float:
        return fidelity(model, reference, texts, seq_len, layers=False).drop

    return measure


def multiplies_short(target: str) -> bool:
    """Whether a target's instructions multiply activations of 16 bits as they are.

    Raises
    ------
    TargetError
        If there is no such target.
    """
    from ..relay_passes.emit import KernelLayout
    from ..targets import get_target

    return KernelLayout.of(get_target(target).dot).widens_lhs


def work_per_token(program: Program, short: bool) -> int:
    """Predict what a token costs at run time beside others, in multiply-adds.

    Products with weights count as they are, every other entry that an operator yields as 32 of
    them. Attention's own products depend on how long texts are, and are left out.

    Parameters
    ----------
    program
        The integer program.
    short
        Whether the target multiplies activations of 16 bits (`multiplies_short`).
    """
    work, weights = 0, program.parameters.keys()
    types = {step.name: step.type.dtype for step in program.steps}
    for step in program.steps:
        if step.operator.TRAITS.matrix_product:
            times = _product(types.get(step.operands["x"]) == "int16", short)
            for name in weights & set(step.operands.values()):
                extents = [n for n in program.parameters[name].shape if isinstance(n, int)]
                work += round(math.prod(extents) * times) if len(extents) == 2 else 0
        elif step.type.shape and isinstance(step.type.shape[-1], int):
            work += _ENTRY * step.type.shape[-1]
    return work


def _product(wide: bool, short: bool) -> float:
    """What products with an activation cost, in those with one of 8 bits."""
    if not wide:
        return 1.0
    return _SHORT_PRODUCT if short else _PRODUCT_OF_PARTS


def search(
    model: CanonicalModel,
    calibration: Calibration,
    bound: float,
    measure: Measure,
    *,
    seq_len: int | None = None,
    tokenizer: Tokenizer | None = None,
    target: str = "host",
    begin: Callable[[str], None] | None = None,
) -> Found:
    """Find the cheapest recipe that keeps within a drop.

    Parameters
    ----------
    model
        The float model.
    calibration : sequence of str, or of mappings
        See `ibert_tvm.quantize`.
    bound
        Largest drop that is accepted, positive.
    measure
        Of a quantised model; on data that calibration has not seen.
    seq_len
        As of `ibert_tvm.quantize`.
    tokenizer
        By default the model's own.
    target
        What the costs are predicted for.
    begin
        Called with the name of every recipe before it is tried.

    Raises
    ------
    UsageError
        If the bound is not positive, or as of `ibert_tvm.quantize`.
    VerificationError
        If no recipe holds the bound; names what each came to.
    """
    if not 0.0 < bound < float("inf"):
        raise UsageError(
            f"a drop of at most {bound}",
            why="rounding always costs something",
            todo="use a positive number, 0.001 for example",
        )
    short = multiplies_short(target)
    trials: list[Trial] = []

    def attempt(recipe: str, table: QuantizationTable, summary: JsonObject) -> Found | None:
        result = assemble(model, table, summary)
        drop = measure(result)
        trials.append(Trial(recipe, work_per_token(result.program, short), drop, drop <= bound))
        return Found(result, recipe, tuple(trials)) if drop <= bound else None

    before: _Recipe | None = None
    for recipe, (fidelity, changes) in _RECIPES.items():
        options = options_of(fidelity, seq_len=model.info.length(seq_len), **changes)
        if short and options.forms.split_share and not options.forms.wide_operands:
            continue  # columns cost more there than 16 bits, and gain less
        if begin is not None:
            begin(recipe)
        current = _Recipe(
            options, *calibrate(model, calibration, None, options, tokenizer=tokenizer)
        )
        found = attempt(recipe, current.table, current.summary)
        if found is None:
            before = current
            continue
        mix = None if before is None else _Mix.of(model, before, current, short)
        fails, holds = (0, 0) if mix is None else (mix.least - 1, len(mix.layers))
        for _ in range(_MIXES):
            if mix is None or holds - fails < 2:
                break
            middle = (fails + holds) // 2
            label = f"{recipe}, for {middle} of {len(mix.layers)} operands"
            if begin is not None:
                begin(label)
            mixed = attempt(label, *mix.take(middle))
            fails, holds = (middle, holds) if mixed is None else (fails, middle)
            found = mixed or found
        return replace(found, trials=tuple(trials))
    closest = min(trials, key=lambda trial: trial.drop)
    raise VerificationError(
        f"no recipe keeps within a drop of {bound:g}",
        where="--max-drop",
        why="; ".join(f"{trial.recipe}: {trial.drop:.5f}" for trial in trials),
        todo=f"accept {_rounded_up(closest.drop):g}, or calibrate on texts that are closer to "
        "those it is measured on",
    )


@dataclass(frozen=True, eq=False)
class _Recipe:
    """A recipe that was calibrated."""

    options: CalibrationOptions
    table: QuantizationTable
    summary: JsonDict

    def form(self, operand: str, layer: str) -> tuple[int, bool]:
        """Columns of what a layer reads, and whether it has more than 8 bits."""
        columns = int(self.table.weights[layer].values.shape[1])
        return columns, self.table.matmul[operand].high > 255


@dataclass(frozen=True, eq=False)
class _Mix:
    """Two recipes that give the same but for the forms of some matrix operands."""

    cheap: _Recipe
    dear: _Recipe
    layers: Mapping[str, Sequence[str]]
    """Layers that read an operand, for those whose form differs; from the largest gain on."""

    @classmethod
    def of(cls, model: CanonicalModel, cheap: _Recipe, dear: _Recipe, short: bool) -> _Mix | None:
        """What can be mixed of two recipes; None where they differ in more, or in too little."""
        from ibert_tvm.relay_passes.lower import requirements

        first, second = (
            recipe.options.but(
                split_share=0.0, copied_share=0.0, wide_values=False, wide_operands=False
            )
            for recipe in (cheap, dear)
        )
        if first != second:
            return None
        needed = requirements(model.module, dear.table.preset)
        layers = {
            name: read
            for name in dear.table.matmul
            if (read := needed[name].layers)
            and cheap.form(name, read[0]) != dear.form(name, read[0])
        }

        def products(recipe: _Recipe, name: str) -> float:
            columns, wide = recipe.form(name, layers[name][0])
            outputs = sum(recipe.table.weights[layer].values.shape[0] for layer in layers[name])
            return columns * outputs * _product(wide, short)

        def gain(name: str) -> float:
            before, after = (r.summary["output_errors"][name] for r in (cheap, dear))
            cost = products(dear, name) - products(cheap, name)
            return float(before - after) / max(cost, 1.0)

        order = sorted(layers, key=gain, reverse=True)
        return cls(cheap, dear, {name: layers[name] for name in order}) if len(order) > 1 else None

    @property
    def least(self) -> int:
        """Fewest operands that are worth a try: none where what attention averages differs too."""
        return (
            1 if self.cheap.options.forms.wide_values == self.dear.options.forms.wide_values else 0
        )

    def take(self, count: int) -> tuple[QuantizationTable, JsonDict]:
        """The dear recipe, of which so many operands have its form: table and record."""
        left = list(self.layers)[count:]
        cheap, dear = self.cheap, self.dear
        layers = [layer for name in left for layer in self.layers[name]]
        table = replace(
            dear.table,
            matmul={**dear.table.matmul, **{name: cheap.table.matmul[name] for name in left}},
            weights={**dear.table.weights, **{name: cheap.table.weights[name] for name in layers}},
        )
        summary = dict(dear.summary)
        for part in ("smoothing", "output_errors"):
            summary[part] = {
                name: (cheap if name in left else dear).summary[part][name]
                for name in dear.summary[part]
            }
        summary["row_scales"] = [name for name, quant in table.matmul.items() if quant.by_row]
        summary["others"] = {"options": cheap.summary["options"], "operands": left}
        return table, summary


def _rounded_up(drop: float) -> float:
    """Two digits, not below."""
    if drop <= 0:
        return drop
    unit = 10.0 ** (math.floor(math.log10(drop)) - 1)
    return float(f"{math.ceil(drop / unit) * unit:.2g}")
