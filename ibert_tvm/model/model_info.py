"""What is known about a model besides its weights; plain data, stored in every artefact.

This module imports neither TVM nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..common.errors import DocumentError, UsageError
from ..common.schema import INTEGER, STRING, check, either, one_of, schema_of
from ..common.strict_json import JsonDict
from .heads import HEADS, KINDS

if TYPE_CHECKING:
    from ..common.types import Floats

# What a model's own library does with the outputs of the network; plain data.

PROBLEMS = {"multi_label_classification": "sigmoid", "regression": "none"}
"""What transformers' pipelines make scores of logits with, by ``problem_type``.

Of any other problem, several classes have a softmax, and a single one a sigmoid.
"""


@dataclass(frozen=True)
class PostProcessing:
    """What follows the network in the library that the model was made for.

    Parameters
    ----------
    classes
        One of `FUNCTIONS`: what transformers makes scores of a text's logits with. None to go by
        the number of classes: softmax, and sigmoid for a single one.
    pairs
        One of `FUNCTIONS`: what a cross-encoder of sentence-transformers makes the score of a pair
        with; None for its default, sigmoid.
    similarity
        One of `SIMILARITIES`: how vectors are compared; None for the default, cosine.
    dimensions
        Vectors are cut to so many channels; None to keep all.
    active
        All but so many of a vector's largest magnitudes are set to 0; None to keep all.
    thresholds
        Least score that counts, by the name of the class. Applied only where a caller asks for it:
        transformers does not.

    Raises
    ------
    ValueError
        If a function is unknown, or a size is no positive number.
    """

    classes: str | None = None
    pairs: str | None = None
    similarity: str | None = None
    dimensions: int | None = None
    active: int | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from .scores import FUNCTIONS, SIMILARITIES  # NumPy too: not for --help

        for name, known in (
            ("classes", FUNCTIONS),
            ("pairs", FUNCTIONS),
            ("similarity", SIMILARITIES),
        ):
            if (value := getattr(self, name)) is not None and value not in known:
                raise ValueError(f"{name} is {value!r}, none of {', '.join(known)}")
        for name in ("dimensions", "active"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name} is {size}, but it is at least 1")

    def finished(self, vectors: Floats, dimensions: int | None = None) -> Floats:
        """Vectors [texts, channels] as the library gives them, before it normalises any.

        Parameters
        ----------
        vectors
            As the network gives them.
        dimensions
            In the place of the record's.
        """
        result = vectors[:, : dimensions or self.dimensions]
        if self.active is not None and self.active < result.shape[1]:
            import numpy as np

            order = np.argsort(-np.abs(result), axis=1, kind="stable")
            result = result.copy()
            np.put_along_axis(result, order[:, self.active :], 0, axis=1)
        return result

    def to_json(self) -> JsonDict:
        """Return what is known, as a JSON-serialisable dictionary; empty if nothing is."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {})}

    @classmethod
    def from_json(cls, document: Any) -> PostProcessing:
        """Read what `to_json` wrote.

        Raises
        ------
        DocumentError
            If it is no such document.
        ValueError
            If a value is not allowed.
        """
        check(document, POST_PROCESSING_SCHEMA, "post_processing")
        return cls(**document)


POST_PROCESSING_SCHEMA = schema_of(PostProcessing, dimensions=INTEGER, active=INTEGER)
"""What the fields of a document may hold."""


_DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class RealInput:
    """What messages call an input that callers give as real numbers.

    Parameters
    ----------
    what
        What it holds.
    axes
        Its axes behind the batch.
    maker
        What of the source prepares it.
    """

    what: str
    axes: str
    maker: str


REAL_INPUTS = {
    "pixel_values": RealInput("images", "channels, height, width", "image processor"),
    "input_features": RealInput("features", "channels, frames", "feature extractor"),
}
"""The inputs that are given as real numbers, float32 [batch, axes], each alone."""


@dataclass(frozen=True)
class OutputInfo:
    """One output of a model.

    Parameters
    ----------
    name
        Name for the caller, for example ``last_hidden_state`` or ``logits``.
    value
        Canonical name of the value that it is.
    kind
        One of `ibert_tvm.model.heads.KINDS`. ``span_logits`` holds the start logit of every token
        at index 0 of the last axis and the end logit at index 1.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """

    name: str
    value: str
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown output kind {self.kind!r}; allowed: {', '.join(KINDS)}")


@dataclass(frozen=True)
class ModelInfo:
    """Architecture, sizes, head and source of a model.

    Parameters
    ----------
    architecture
        ``model_type`` of the source's configuration (``bert``, ``roberta`` ...), or the class name
        of a torch module that has none.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    inputs
        Names of the inputs in order: token tensors [batch, seq_len] int64, or one of `REAL_INPUTS`
        [batch, *image_size] float32.
    outputs
        The outputs in order.
    hidden_size
        Channels of the encoder's hidden state.
    num_layers
        Attention layers.
    vocab_size
        Rows of the token embedding, that is, valid ids are 0 .. vocab_size - 1.
    source_vocab_size
        Rows that the source had, where some were left out (`quantize --vocabulary`); else None.
    type_vocab_size
        Valid token types are 0 .. type_vocab_size - 1; 0 if the model takes none.
    max_sequence_length
        Longest sequence that the positions allow; None if the model has no position table. For a
        model of images the one length that it has: patches and prepended tokens.
    pad_token_id
        Id that fills a padded batch.
    id2label
        Names of the classes; empty without a classification head.
    source
        Folder or description of what was imported.
    source_sha256
        Hash of the weight files (in name order), or of the parameters of a module in memory.
    description
        One line for people.
    tokenizer_files
        Names of the tokenizer files in the source folder.
    notes
        What a caller must know, for example that the source normalises its embeddings afterwards.
    image_size
        Channels, height and width of the images that the model takes, or channels and frames of
        its features; None if it takes tokens.
    static_shape
        Batch and sequence length that the source was exported for, each None where it is free:
        the compiled model is compared with its source, so it is compiled for no other. None if
        both are free.
    prompts
        What the source puts before texts, by name; the tokenizer gets it with the text.
    default_prompt_name
        The prompt of texts for which none is chosen; None to put nothing before them.
    tokenizer_behaviour
        What `ibert_tvm.model.tokenizer_behaviour.behaviour` says of the tokenizer; empty without
        one, and in artefacts of earlier versions.
    post_processing
        What the model's own library does with the outputs.
    license
        Of the model, as its source states it; None where it states none.

    Raises
    ------
    ValueError
        If the head is unknown, a size is negative, or there is no input or output.
    """

    architecture: str
    head: str
    inputs: tuple[str, ...]
    outputs: tuple[OutputInfo, ...]
    hidden_size: int
    num_layers: int
    vocab_size: int
    type_vocab_size: int = 0
    max_sequence_length: int | None = None
    pad_token_id: int = 0
    id2label: Mapping[int, str] = field(default_factory=dict)
    source: str = ""
    source_sha256: str = ""
    description: str = ""
    tokenizer_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    image_size: tuple[int, ...] | None = None
    static_shape: tuple[int | None, int | None] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    tokenizer_behaviour: Mapping[str, str] = field(default_factory=dict)
    post_processing: PostProcessing = field(default_factory=PostProcessing)
    license: str | None = None
    source_vocab_size: int | None = None

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise ValueError(f"unknown head {self.head!r}; allowed: {', '.join(HEADS)}")
        if not self.inputs or not self.outputs:
            raise ValueError("a model has at least one input and one output")
        for name in ("hidden_size", "num_layers", "vocab_size", "type_vocab_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but sizes are not negative")
        if self.image_size is not None:
            real = REAL_INPUTS.get(self.inputs[0])
            if real is None or len(self.inputs) > 1:
                raise ValueError(f"image_size of a model that takes {', '.join(self.inputs)}")
            count = len(real.axes.split(", "))
            if len(self.image_size) != count or min(self.image_size) < 1:
                raise ValueError(f"image_size is {self.image_size}: {real.axes} are needed")
        if self.static_shape is not None and len(self.static_shape) != 2:
            raise ValueError(f"static_shape is {self.static_shape}: batch and length are needed")
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ValueError(f"there is no prompt {self.default_prompt_name!r}, the default")

    def length(self, wanted: int | None) -> int:
        """Tokens that texts are cut to: what is wanted, else 128, or all where there are fewer."""
        if wanted is not None:
            return wanted
        return min(_DEFAULT_LENGTH, self.max_sequence_length or _DEFAULT_LENGTH)

    def check_length(self, seq_len: int, purpose: str) -> None:
        """Refuse more tokens than the model has positions for, with a `UsageError`."""
        longest = self.max_sequence_length
        if longest is not None and seq_len > longest:
            raise UsageError(
                f"cannot {purpose} {seq_len} tokens",
                why=f"the model has positions for {longest} tokens",
                todo=f"use a sequence length of at most {longest}",
            )

    @property
    def reads_pairs(self) -> bool:
        """Whether pairs of texts are what it is used for: a reranker, or a model of answers."""
        head = HEADS[self.head]
        return head.pairs and (not head.labelled or len(self.id2label) == 1)

    def label(self, index: int) -> str:
        """Name of a class, as transformers calls those that have none."""
        return self.id2label.get(index, f"LABEL_{index}")

    @property
    def real_input(self) -> RealInput | None:
        """What the model takes as real numbers; None if it takes tokens."""
        return None if self.image_size is None else REAL_INPUTS[self.inputs[0]]

    def to_json(self) -> JsonDict:
        """Return the information as a JSON-serialisable dictionary."""
        document = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        document["id2label"] = {str(key): label for key, label in self.id2label.items()}
        document["post_processing"] = self.post_processing.to_json()
        for name in _OMITTED:
            if document[name] in (None, {}):
                del document[name]
        return document

    @classmethod
    def from_json(cls, document: Any) -> ModelInfo:
        """Read what `to_json` wrote.

        Raises
        ------
        DocumentError
            If it is no such document: a field is missing, unknown or of another type.
        ValueError
            If a value is not allowed.
        """
        check(document, _SCHEMA, "info")
        document = dict(document)
        problem = document.pop("problem_type", None)  # of artefacts before post_processing
        if unknown := sorted(set(document) - {item.name for item in fields(cls)}):
            raise DocumentError(f"unknown fields: {', '.join(unknown)}", "info")
        values: JsonDict = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
        values["outputs"] = tuple(
            OutputInfo(name=item["name"], value=item["value"], kind=item["kind"])
            for item in document["outputs"]
        )
        values["id2label"] = {int(key): label for key, label in values.get("id2label", {}).items()}
        older = {"classes": PROBLEMS[problem]} if problem in PROBLEMS else {}
        values["post_processing"] = PostProcessing.from_json(values.get("post_processing", older))
        return cls(**values)


_LONGEST_NUMBER = 10
_OMITTED = (
    *("image_size", "static_shape", "prompts", "default_prompt_name", "post_processing"),
    *("tokenizer_behaviour", "license", "source_vocab_size"),
)
"""Fields that a document has only where they are not empty."""
_OPTIONAL_INTEGER = either(INTEGER, one_of(None))
_LABELS = (
    lambda value: (
        isinstance(value, dict)
        and all(key.isdecimal() and len(key) < _LONGEST_NUMBER for key in value)
        and all(isinstance(label, str) for label in value.values())
    ),
    "an object of strings by number",
)
_SCHEMA = {
    **schema_of(
        ModelInfo,
        outputs=[schema_of(OutputInfo)],
        max_sequence_length=_OPTIONAL_INTEGER,
        id2label=_LABELS,
        image_size=[INTEGER],
        static_shape=[_OPTIONAL_INTEGER],
        post_processing=POST_PROCESSING_SCHEMA,
        source_vocab_size=_OPTIONAL_INTEGER,
    ),
    "problem_type?": STRING,
}
"""What the fields of a document may hold."""
