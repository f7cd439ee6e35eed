"""What is known about a head: one record each, asked by every room.

A head is what a model computes on top of its encoder. The record is plain data, so that it needs
neither TVM nor torch: the frontend has an implementation of every `Finish`, the I-BERT importer of
every `Layer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...common.registry import Registry


@dataclass(frozen=True)
class Kind:
    """Meaning of an output.

    Parameters
    ----------
    name
        As artefacts and metadata have it.
    axes
        Of the output: ``batch``, ``seq_len``, and what a row holds.
    feature
        What sentence-transformers calls it; empty where it has no name for it.
    compared
        What two models' are compared as, of `ibert_tvm.evaluation.agreements.COMPARISONS`.
    task
        What the Hugging Face hub calls its use, ``pipeline_tag``.
    """

    name: str
    axes: tuple[str, ...]
    feature: str = ""
    compared: str = "vectors"
    task: str = "sentence-similarity"

    @property
    def per_token(self) -> bool:
        """Whether every token has a row; otherwise every text has one."""
        return "seq_len" in self.axes


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "hidden_state",
            ("batch", "seq_len", "channels"),
            "token_embeddings",
            task="feature-extraction",
        ),
        Kind("pooled", ("batch", "channels"), "sentence_embedding"),
        Kind("embedding", ("batch", "channels"), "sentence_embedding"),
        Kind("logits", ("batch", "labels"), compared="classes", task="text-classification"),
        Kind(
            "token_logits",
            ("batch", "seq_len", "labels"),
            compared="tags",
            task="token-classification",
        ),
        Kind("span_logits", ("batch", "seq_len", "2"), compared="spans", task="question-answering"),
    )
}
"""The kinds of outputs, by name."""


@dataclass(frozen=True)
class Finish:
    """How an output is made from what a transformers model returns."""


@dataclass(frozen=True)
class Returned(Finish):
    """A field of the result.

    Parameters
    ----------
    field
        ``last_hidden_state``, ``pooler_output`` or ``logits``.
    """

    field: str


@dataclass(frozen=True)
class LastLayer(Finish):
    """A layer of the model, which its class splits, applied to the hidden state.

    Parameters
    ----------
    layer
        Attribute of the model.
    """

    layer: str


@dataclass(frozen=True)
class PooledTokens(Finish):
    """One pooling over the hidden state: the folder's, or the mean."""


@dataclass(frozen=True)
class WholePipeline(Finish):
    """Every module that ``modules.json`` lists behind the transformer."""


@dataclass(frozen=True)
class Layer:
    """A step of a head of an I-BERT checkpoint.

    Parameters
    ----------
    op : {"first_token", "linear", "tanh", "pooling"}
        What it computes.
    name
        Module of the source; a ``linear`` has the weights ``NAME.weight`` and ``NAME.bias``.
    rows
        Of a ``linear``: outputs, or ``hidden`` or ``labels``.
    module
        Module of the source that computes it, where `name` is none.
    """

    op: str
    name: str
    rows: int | str = "hidden"
    module: str = ""


@dataclass(frozen=True)
class OnnxOutput:
    """How the output is found in an ONNX graph.

    Parameters
    ----------
    names
        Outputs of this name are it, the first that is there.
    rank
        Dimensions of the output, where the name leaves that open; None for any.
    only
        Whether the only output of that rank is taken, too, under any name.
    columns
        Outputs that are the columns of the wanted one, in the place of `names`.
    precedence
        Of several heads that the names of a graph's outputs speak of, the largest is its own. Heads
        of one precedence share their names, and their ranks decide.
    normalised
        Whether the tensor is wanted with its normalisation to length 1 (True), or before it
        (False), which also averages the hidden state of a graph that has no such output.
    """

    names: tuple[str, ...]
    rank: int | None = None
    only: bool = False
    columns: tuple[str, ...] = ()
    precedence: int = 0
    normalised: bool | None = None


@dataclass(frozen=True)
class Head:
    """What a model computes on top of its encoder.

    Parameters
    ----------
    name
        As users and artefacts write it.
    output
        Name of the output for callers.
    kind
        Of `KINDS`.
    finish
        How a transformers model's result becomes the output.
    tokens, reals
        Whether models of tokens have it, and models of images or features.
    classes
        Ends of transformers' class names that compute it; empty for what any encoder has.
    unlabelled
        Ends of the names of pretraining classes with the same output, whose labels mean nothing; a
        folder of one is imported without its head, a module in memory as it is.
    auto_class
        Transformers' class that loads a folder with this head.
    labelled
        Whether the configuration names its classes (``id2label``).
    onnx
        Its output in an ONNX graph.
    checkpoint
        Its steps in an I-BERT checkpoint; None if there is no such checkpoint.
    methods
        Methods of `Encoder` that read its output.
    samples
        Classes of `ibert_tvm.tasks.samples` that it is trained on.
    pairs
        Whether it reads pairs of texts; where it is labelled, with one label only.

    Raises
    ------
    ValueError
        If the kind is unknown, a part contradicts another, or nothing has the head.
    """

    name: str
    output: str
    kind: str
    finish: Finish
    onnx: OnnxOutput
    tokens: bool = True
    reals: bool = False
    classes: tuple[str, ...] = ()
    unlabelled: tuple[str, ...] = ()
    auto_class: str = "AutoModel"
    labelled: bool = False
    checkpoint: tuple[Layer, ...] | None = None
    methods: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    pairs: bool = False

    def __post_init__(self) -> None:
        wrong = next((why for holds, why in self._rules() if not holds), None)
        if wrong is not None:
            raise ValueError(f"the head {self.name!r} {wrong}")

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        onnx, layers = self.onnx, self.checkpoint or ()
        return (
            (self.name.isidentifier(), "has no name that is one word"),
            (self.kind in KINDS, f"has the unknown kind {self.kind!r}; there are {[*KINDS]}"),
            (self.tokens or self.reals, "takes neither tokens nor images"),
            (
                bool(self.classes) == (self.auto_class != "AutoModel"),
                "has classes or a class to load, not both",
            ),
            (bool(onnx.names or onnx.columns), "has no output of an ONNX graph"),
            (not onnx.only or onnx.rank is not None, "takes the only output of no rank"),
            (all(item.op in _LAYERS for item in layers), f"has a layer that is none of {_LAYERS}"),
            (not self.samples or self.tokens, "is trained on texts, which it does not take"),
        )

    @property
    def public(self) -> tuple[str, str]:
        """Name and kind of the output."""
        return self.output, self.kind

    @property
    def is_logits(self) -> bool:
        """Whether it gives scores of classes, and not vectors."""
        return KINDS[self.kind].axes[-1] in ("labels", "2")


_LAYERS = ("first_token", "linear", "tanh", "pooling")
_registry: Registry[Head] = Registry("head")
HEADS = _registry.records
"""Every head by its name; a view."""
register_head, unregister_head = _registry.register, _registry.unregister


def heads_with(method: str) -> tuple[Head, ...]:
    """Heads of texts whose output a method of `Encoder` reads."""
    return tuple(head for head in HEADS.values() if method in head.methods and head.tokens)


def kinds_of(method: str) -> tuple[str, ...]:
    """Kinds of output that a method of `Encoder` reads."""
    return tuple(dict.fromkeys(head.kind for head in heads_with(method)))


def head_of_class(name: str, unlabelled: bool = False) -> str:
    """Return the head that a transformers class computes.

    Parameters
    ----------
    name
        Class name, for example ``BertForSequenceClassification``.
    unlabelled
        Whether pretraining classes have the head whose output is theirs.

    Returns
    -------
    str
        A key of `HEADS`; ``none`` for bare classes and those without a known head.
    """
    for head in HEADS.values():
        if name.endswith(head.classes or ("\0",)):
            return head.name
    for head in HEADS.values():
        if unlabelled and name.endswith(head.unlabelled or ("\0",)):
            return head.name
    return "none"
