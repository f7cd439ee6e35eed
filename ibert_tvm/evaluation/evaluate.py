"""Fidelity: how close an integer model stays to its float original on real texts.

The candidate is a quantised model, evaluated by the NumPy reference of the integer dialect with
every layer's values, or a compiled library, of which only the outputs show. The reference is the
canonical float model that it came from, run with NumPy. No tolerance is involved: this
measures quantisation, whereas integer programs are compared for equality elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import UsageError
from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Array, Doubles, Ints
from ..model.artefact import QuantizedModel
from ..model.heads import KINDS
from ..model.model_info import ModelInfo
from ..runtime.metadata import LibraryMetadata
from ..runtime.pixels import image_record, quantize_images
from .agreements import AnyAgreement, Vectors, comparison_of, stacked
from .metrics import RunningSimilarity, mean_pool, text_errors

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.tokenization import Tokenizer, Window
    from ..runtime import Library

# Shapes that the float model is compiled for; padding is masked and changes nothing.
_LENGTH_STEP = 32
_BATCH = 8

_TOKENS = ("input_ids", "attention_mask", "token_type_ids")

Inputs = Mapping[str, Ints]
_Run = Callable[[Inputs], tuple[Doubles, dict[str, Array]]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LayerFidelity:
    """One named value of the model, over the real tokens of all texts.

    Attributes
    ----------
    name
        Its canonical name.
    cosine
        Between the float and the dequantised integer values.
    relative_error
        Norm of their difference over the norm of the float values; None if these are all 0.
    """

    name: str
    cosine: float
    relative_error: float | None


@dataclass(frozen=True)
class Fidelity:
    """How close an integer model is to its float original.

    Attributes
    ----------
    texts, seq_len
        Number of texts, and the tokens they were truncated to.
    output
        The output that is compared: the model's first.
    agreement
        Of the outputs of all texts, as their kind asks: of vectors (hidden states are mean-pooled),
        classes, scores, classes of tokens, or answers.
    drop
        The mean of `text_errors`, which `quantize --max-drop` bounds whatever the kind.
    text_errors
        1 - cosine of the outputs of each text, in the order of the texts.
    layers
        In the order of the program; empty for a library, which shows none.
    """

    texts: int
    seq_len: int
    output: str
    agreement: AnyAgreement
    drop: float
    text_errors: tuple[float, ...]
    layers: tuple[LayerFidelity, ...]

    def to_json(self) -> JsonDict:
        """Return a flat dictionary with the list `layers`."""
        return {
            **asdict(self.agreement),
            "drop": self.drop,
            "text_errors": list(self.text_errors),
            "texts": self.texts,
            "seq_len": self.seq_len,
            "output": self.output,
            "layers": [asdict(layer) for layer in self.layers],
        }


def fidelity(
    candidate: QuantizedModel | Library,
    reference: CanonicalModel,
    texts: Sequence[str | tuple[str, str]],
    seq_len: int | None = None,
    tokenizer: Tokenizer | None = None,
    layers: bool = True,
    progress: Progress | None = None,
) -> Fidelity:
    """Compare an integer model with the float model on texts.

    Parameters
    ----------
    candidate
        The integer model.
    reference
        The float model that it was made from.
    texts
        Texts, or pairs of texts, that calibration has not seen; at least one.
    seq_len
        Truncate them to this many tokens, as `ibert_tvm.quantize` does.
    tokenizer
        By default the candidate's own.
    layers
        Compare every named value as well, where the candidate is a QuantizedModel.
    progress
        Called with the texts done and the texts there are.

    Raises
    ------
    UsageError
        If the two do not belong together, there is no tokenizer, or `seq_len` does not fit.
    """
    info = candidate.info if isinstance(candidate, QuantizedModel) else candidate.metadata.info
    check_pair(info, reference.info)
    reference = with_ids_of(info, reference, tokenizer or own_tokenizer(candidate))
    seq_len = info.length(seq_len)
    if isinstance(candidate, QuantizedModel):
        check_seq_len(seq_len, info)
    else:
        check_seq_len(seq_len, info, candidate.metadata)
    tokenizer = tokenizer or own_tokenizer(candidate)
    comparison = comparison_of(info)
    windows: list[Window] | None = None
    if comparison.of_text is not None:
        tokenizer.check(texts)
        windows = [tokenizer.windows(text, seq_len)[0] for text in texts]
    tokens = tokenizer.batch_of(windows) if windows else tokenizer.encode(texts, max_length=seq_len)

    from ibert_tvm.relay_passes.canonical import FloatModel

    names, run = _runner(candidate, layers)
    float_model = FloatModel(reference.module, reference.parameters, names)
    kind = info.outputs[0].kind
    vectors: dict[int, Vectors] = {}
    known: dict[int, Any] = {}
    similarities = {name: RunningSimilarity() for name in names}
    done = 0
    for rows, batch in tokens.batches(_BATCH, _LENGTH_STEP, seq_len, info.pad_token_id):
        inputs, mask = batch.inputs(_TOKENS), batch.attention_mask
        result = float_model.run({name: inputs[name] for name in float_model.input_names})
        output, values = run(inputs)
        for name, value in values.items():
            a, b = (_real_part(v, mask, len(rows)) for v in (result.values[name], value))
            similarities[name].add(a, b)
        for position, row in enumerate(rows):
            a, b = (whole[position] for whole in (result.outputs[0], output))
            real = mask[position]
            vectors[row] = vector_of_text(kind, a, real), vector_of_text(kind, b, real)
            if comparison.of_text is not None and windows is not None:
                known[row] = comparison.of_text(a[real == 1], b[real == 1], windows[row])
        done += len(rows)
        if progress is not None:
            progress(done, len(texts))
    order = range(len(texts))
    errors = text_errors(*stacked([vectors[row] for row in order]))
    return Fidelity(
        texts=len(texts),
        seq_len=seq_len,
        output=info.outputs[0].name,
        agreement=comparison.agreement([(known or vectors)[row] for row in order], info),
        drop=float(errors.mean()),
        text_errors=tuple(errors.tolist()),
        layers=tuple(
            LayerFidelity(name, s.cosine, s.relative_error) for name, s in similarities.items()
        ),
    )


def check_seq_len(seq_len: int, info: ModelInfo, metadata: LibraryMetadata | None = None) -> None:
    """Refuse a length that the integer model cannot take.

    Parameters
    ----------
    seq_len
        Tokens that texts are truncated to.
    info
        The integer model.
    metadata
        Of the library, if it is one.

    Raises
    ------
    UsageError
        If nothing as long was compiled, or the model has no positions for it.
    """
    if metadata is not None and seq_len > metadata.max_seq_len:
        raise UsageError(
            f"cannot evaluate at {seq_len} tokens",
            where=str(metadata.path),
            why=f"the longest compiled length is {metadata.max_seq_len}",
            todo="give a smaller --seq-len, or compile with a larger one",
        )
    info.check_length(seq_len, "evaluate at")


def check_pair(candidate: ModelInfo, reference: ModelInfo) -> None:
    """Refuse a float model that an integer model cannot come from, with a `UsageError`."""
    for what in ("architecture", "hidden_size", "num_layers", "vocab_size", "head"):
        a, b = getattr(candidate, what), getattr(reference, what)
        if what == "vocab_size" and candidate.source_vocab_size is not None:
            a = candidate.source_vocab_size
        # An ONNX file without a config.json beside it does not say what it was exported from.
        if a != b and not (what == "architecture" and "onnx" in (a, b)):
            raise UsageError(
                "the two models do not belong together",
                why=f"{what.replace('_', ' ')} is {a} in the integer model, {b} in the float one",
                todo="give the float model that the integer one was made from, with --against",
            )


def with_ids_of(
    candidate: ModelInfo, reference: CanonicalModel, tokenizer: Tokenizer
) -> CanonicalModel:
    """The float model with the ids of an integer model that has fewer words.

    Parameters
    ----------
    candidate, tokenizer
        The integer model.
    reference
        The float model.

    Raises
    ------
    UsageError
        If the tokenizer has a word that the float model's has not.
    """
    from ibert_tvm.relay_passes.canonical import FloatModel

    from ..model.tokenization import Tokenizer

    if candidate.source_vocab_size is None:
        return reference
    known = dict(Tokenizer(reference.tokenizer).vocabulary()) if reference.tokenizer else {}
    words = [(word, at) for word, at in tokenizer.vocabulary() if at < candidate.vocab_size]
    missing = next((word for word, _ in words if word not in known), None)
    if missing is not None:
        raise UsageError(
            "the two models cannot be compared",
            why=f"the integer model has fewer words, and the float model lacks {missing!r}",
            todo="give the float model with its tokenizer files",
        )
    arrays = dict(reference.parameters)
    for step in FloatModel(reference.module, arrays).steps:
        for operand in step.operator.OPERANDS:
            if operand.rows_of and step.operands[operand.rows_of].name == "input_ids":
                name = step.operands[operand.name].name
                arrays[name] = reference.parameters[name].copy()
                arrays[name][[at for _, at in words]] = reference.parameters[name][
                    [known[word] for word, _ in words]
                ]
    return replace(reference, parameters=arrays)


def own_tokenizer(candidate: QuantizedModel | Library) -> Tokenizer:
    """Return the tokenizer that came with a model; a `UsageError` if none did."""
    from ..model.tokenization import Tokenizer

    if isinstance(candidate, QuantizedModel):
        own = Tokenizer(candidate.tokenizer) if candidate.tokenizer else None
    else:
        own = candidate.tokenizer
    if own is None:
        raise UsageError(
            "the model has no tokenizer",
            why="its source came without tokenizer files",
            todo="quantise it again from a folder with its tokenizer files",
        )
    return own


def _real_part(value: Array, mask: Array, rows: int) -> Array:
    """What belongs to real tokens of real texts."""
    if value.ndim >= 2 and value.shape[:2] == mask.shape:
        return value[:rows][mask[:rows] == 1]
    return value[:rows]


def vector_of_text(kind: str, value: Array, mask: Array) -> Doubles:
    """Return the vector that stands for one text, from its output and mask."""
    if KINDS[kind].per_token:
        return mean_pool(value[None], mask[None])[0]
    return np.asarray(value, dtype=np.float64)


def _runner(candidate: QuantizedModel | Library, layers: bool) -> tuple[list[str], _Run]:
    """Names of the values that are compared, and what computes the first output and them.

    A library shows its outputs only; of a model the NumPy reference is run.
    """
    if not isinstance(candidate, QuantizedModel):
        names = [record.name for record in candidate.metadata.inputs]
        output = candidate.metadata.outputs[0].name

        def run_library(inputs: Inputs) -> tuple[Doubles, dict[str, Array]]:
            given: dict[str, Any] = {name: inputs[name] for name in names}
            return candidate.run(**given)[output], {}

        return [], run_library
    scale = float(candidate.quantization["outputs"][0]["scale"])
    forms = _comparable(candidate.quantization) if layers else {}

    def run(inputs: Inputs) -> tuple[Doubles, dict[str, Array]]:
        outputs, captured = _evaluate(candidate, inputs)
        values = {name: _real(captured[form["value"]], form) for name, form in forms.items()}
        return outputs[0].astype(np.float64) * scale, values

    return list(forms), run


def _comparable(quantization: JsonObject) -> dict[str, JsonObject]:
    """The integer form of every canonical value that is compared with the float one.

    A value may exist as an accumulator, as a wide value of the residual stream, and as an 8-bit
    operand. The form that the most precise reader sees is the value: the stream before the
    operand, and the accumulator only where nothing else was made of it.
    """
    order = {"stream": 0, "matmul": 1}
    return {
        name: min(forms, key=lambda form: order.get(str(form.get("form")), len(order)))
        for name, forms in quantization.get("values", {}).items()
        if forms
    }


def _real(integers: Array, form: JsonObject) -> Doubles:
    """Real numbers that a form of a value stands for."""
    from ibert_tvm.relay_passes.quantization_table import sum_of_columns

    steps = integers.astype(np.float64)
    if "columns" in form:
        steps = sum_of_columns(steps, np.asarray(form["columns"]))
    zero, scale = (np.asarray(form[key], np.float64) for key in ("zero_point", "scale"))
    return (steps - zero - np.asarray(form.get("excess", 0.0))) * scale


def _evaluate(model: QuantizedModel, inputs: Inputs) -> tuple[list[Array], dict[str, Array]]:
    from ibert_tvm.relay_passes.integer.evaluate import evaluate_all

    given: dict[str, Array] = {name: inputs[name] for name in model.input_names}
    record = image_record(model.quantization.get("inputs", ()))
    if record is not None:
        given[record.name] = quantize_images(
            record, given[record.name], model.info.image_size or ()
        )
    return evaluate_all(model.program, given, model.parameters)


def evaluate_integers(model: QuantizedModel, inputs: Inputs) -> dict[str, Array]:
    """Run the NumPy reference of a quantised model.

    Parameters
    ----------
    model
        The model.
    inputs : mapping of str to numpy.ndarray
        Its inputs [batch, tokens], integers, or images, real or integers; others are ignored.

    Returns
    -------
    dict of str to numpy.ndarray
        Integers of the outputs, by name: what a compiled library gives, bit for bit.
    """
    outputs, _ = _evaluate(model, inputs)
    return {info.name: o for info, o in zip(model.info.outputs, outputs, strict=True)}
