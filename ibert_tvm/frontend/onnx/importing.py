"""From an ONNX model to canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..canonicalise import Canonical, Revisit, canonicalise
from ..errors import UnsupportedModelError
from ..finish import described, finish
from ..model import CanonicalModel
from ..report import ImportReport
from ..verify import VERIFY_SHAPE, Source
from .heads import Outputs, choose_outputs
from .operators import OPERATORS
from .precision import in_float32
from .reading import opsets, without_functions
from .signature import GraphInput, ProbeShape, graph_inputs, probe_shape
from .source_run import source_runner
from .translator import Translator

if TYPE_CHECKING:
    import onnx


def import_onnx_model(
    model: onnx.ModelProto,
    *,
    source: str,
    head: str | None = None,
    inputs: Mapping[str, str] | None = None,
    pad_token_id: int | None = None,
    id2label: Mapping[int, str] | None = None,
    image_size: Sequence[int] | None = None,
    verify: bool = True,
) -> CanonicalModel:
    """Import a float ONNX model.

    Parameters
    ----------
    model
        The model, all its data in memory, as `read_model_files` returns it.
    source
        The file, or what stands for it in messages and in the result.
    head
        One of `ibert_tvm.model.heads.HEADS`; by default what the names of the outputs say.
    inputs
        Canonical names (``input_ids``, ``attention_mask``, ``token_type_ids``, ``pixel_values``,
        ``input_features``) by the graph's own names, where they differ.
    pad_token_id
        Fills padding; by default what positions skip, or 0.
    id2label
        Names of the classes.
    image_size
        Planes, height and width of images, or planes and frames of features, where the graph leaves
        them free.
    verify
        Compare the result with what ONNX Runtime computes, on a padded batch of another shape.

    Returns
    -------
    CanonicalModel
        The model. Its `report` tells nodes and tensors of the graph for every canonical value.

    Raises
    ------
    UnsupportedModelError
        If a part of it has no canonical form; the error's `report` holds what was matched.
    ModelSourceError
        If it does not compute the head.
    UsageError
        If `inputs` does not fit it.
    """
    model = without_functions(model, source)
    traced = _Graph.of(in_float32(model), inputs, source, image_size, head)
    canonical = traced.canonical()
    shape, chosen = traced.shape, traced.chosen
    ranks = [rank for _, rank in canonical.outputs]
    name_of_head, outputs = _public(chosen, ranks)
    try:
        result = finish(
            canonical,
            traced.runner(source) if verify else None,
            architecture="onnx",
            head=name_of_head,
            outputs=outputs,
            pad_token_id=pad_token_id,
            id2label=id2label,
            shape=_verified(shape),
            # One that fixes the length cannot be seen at another.
            again=traced.canonical if shape.static[1] is None else None,
        )
    except UnsupportedModelError as error:
        error.report = canonical.report
        raise
    return described(
        result,
        source=source,
        description=f"ONNX model {source}, head {name_of_head}",
        notes=(*chosen.notes, *_named(chosen, outputs)),
        static_shape=None if shape.static == (None, None) else shape.static,
    )


@dataclass(frozen=True)
class _Graph:
    """A graph, and what of it is imported at which shape."""

    model: onnx.ModelProto
    versions: Mapping[str, int]
    taken: tuple[GraphInput, ...]
    chosen: Outputs
    shape: ProbeShape

    @classmethod
    def of(
        cls,
        model: onnx.ModelProto,
        inputs: Mapping[str, str] | None,
        source: str,
        image_size: Sequence[int] | None,
        head: str | None,
    ) -> _Graph:
        versions = opsets(model)
        taken = graph_inputs(model.graph, inputs, source, image_size)
        images = any(item.real for item in taken)
        mask = next((item.name for item in taken if item.canonical == "attention_mask"), None)
        chosen = choose_outputs(model.graph, head, mask, versions[""], source, images)
        _check_types(model.graph, source)
        return cls(model, versions, taken, chosen, probe_shape(taken, source))

    def runner(self, source: str) -> Source:
        """What runs the model itself."""
        return source_runner(self.model, self.taken, self.chosen.tensors, self.chosen.nodes, source)

    def canonical(self, revisit: Revisit | None = None) -> Canonical:
        """Translate and canonicalise it, also at another length."""
        shape, tensors = self.shape, self.chosen.tensors
        if revisit is not None:
            shape = replace(shape, seq_len=revisit.length)
        nodes = [*self.model.graph.node, *self.chosen.nodes]
        initializers = self.model.graph.initializer
        translator = Translator(initializers, nodes, self.taken, self.versions, shape, OPERATORS)
        translation = translator.run(tensors)
        report = ImportReport()
        try:
            canonical = canonicalise(
                translation.module,
                translation.parameters,
                inputs=[item.canonical for item in self.taken],
                outputs=tensors,
                names=translation.names,
                origins=translation.origins,
                revisit=revisit,
            )
            report = canonical.report
        except UnsupportedModelError as error:
            report = error.report or report
            raise
        finally:
            report.source = _describe(self.model, self.versions)
            report.foldings[:0] = translation.foldings
            report.weights.update(translation.weights)
        return canonical


def _verified(shape: ProbeShape) -> tuple[int, int] | None:
    """Batch and length of the comparison, where the graph does not run at any."""
    batch, length = shape.static
    if (batch, length) == (None, None):
        return None
    return batch or VERIFY_SHAPE[0], length or VERIFY_SHAPE[1]


def _describe(model: onnx.ModelProto, versions: Mapping[str, int]) -> str:
    used = {node.domain for node in model.graph.node}
    others = ", ".join(f"{name} {versions[name]}" for name in sorted(used & set(versions)) if name)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    return (
        f"ONNX, operator set {versions['']}"
        + (f" and {others}" if others else "")
        + (f", made by {producer}" if producer else "")
    )


def _public(chosen: Outputs, ranks: Sequence[int]) -> tuple[str, list[tuple[str, str]]]:
    """Head, and name and kind of every output, now that the numbers of dimensions are known."""
    fitting = [head for head in chosen.heads if head.onnx.rank in (None, ranks[0])]
    head = (fitting or chosen.heads)[-1]
    if not chosen.names:
        return head.name, [head.public]
    kinds = ["hidden_state" if rank == 3 else "pooled" for rank in ranks]
    return head.name, list(zip(chosen.names, kinds, strict=True))


_KINDS = {"hidden_state": "a vector per token", "pooled": "a vector per sequence"}


def _named(chosen: Outputs, outputs: Sequence[tuple[str, str]]) -> list[str]:
    """What outputs were taken for whose names say nothing."""
    if not chosen.names:
        return []
    which = ", ".join(f"{name} as {_KINDS[kind]}" for name, kind in outputs)
    return [f"outputs of no known name are all imported, as they are: {which}"]


def _check_types(graph: onnx.GraphProto, source: str) -> None:
    """Refuse weights that are not float32: calibration measures in float32."""
    from onnx import TensorProto

    for item in graph.initializer:
        if item.data_type == TensorProto.DOUBLE and len(item.dims) > 1:
            raise UnsupportedModelError(
                "the model's weights are double",
                where=f"{source}, initializer {item.name}",
                why="calibration measures ranges in float32",
                todo="export the model in float32",
            )
