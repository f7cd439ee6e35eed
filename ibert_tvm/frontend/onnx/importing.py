"""From an ONNX model to canonical form."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from ...common.errors import error_lines
from ...common.types import Floats, Longs
from ..canonicalise import Canonical, Revisit, canonicalise
from ..errors import ModelSourceError, UnsupportedModelError
from ..finish import described, finish
from ..model import CanonicalModel
from ..report import ImportReport
from ..verify import VERIFY_SHAPE, Source
from .heads import Outputs, choose_outputs
from .operators import OPERATORS
from .reading import messages, opsets, without_functions
from .signature import GraphInput, ProbeShape, graph_inputs, probe_shape
from .translator import Translator

# Running the ONNX model itself, to compare the import with it.
#
# ONNX Runtime does it. It lags behind onnx in operator sets: a model in a set that it does not know
# yet is run by onnx's own evaluator, which defines the operators but knows none of ONNX Runtime's.

_LARGEST = 2**31 - 2**20
"""Protobuf cannot serialise more than 2 GB."""
_UNKNOWN_SET = "ValidateOpsetForDomain"
"""ONNX Runtime has no error of its own for an operator set that it does not know."""

_logger = logging.getLogger(__name__)


def source_runner(
    model: onnx.ModelProto,
    inputs: Sequence[GraphInput],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    where: str,
) -> Callable[[Mapping[str, Longs]], tuple[Floats, ...]]:
    """Return a function that runs a model.

    Parameters
    ----------
    model
        The model. Its outputs are exchanged while it is handed to ONNX Runtime, and put back.
    inputs
        Its inputs.
    outputs
        Tensors to return.
    nodes
        Nodes to add to the graph.
    where
        The file, for messages.

    Returns
    -------
    callable
        Takes int64 arrays by canonical input name. It raises ModelSourceError if ONNX Runtime does
        not run the model.

    Raises
    ------
    ModelSourceError
        If ONNX Runtime does not load the model.
    """
    onnxruntime = _quiet_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with _outputs_changed(model, outputs, nodes):
        try:
            runner = _session(model, options)
            taken = {item.name for item in runner.get_inputs()}
        except Exception as error:  # ONNX Runtime has a class per status, without a common base
            if _UNKNOWN_SET not in str(error) or any(node.domain for node in model.graph.node):
                raise ModelSourceError(
                    "ONNX Runtime cannot load the model",
                    where=where,
                    why=error_lines(error)[0],
                    todo="export it again; verify=False imports it without comparing it with "
                    "itself",
                ) from error
            from onnx.reference import ReferenceEvaluator

            _logger.info("ONNX Runtime does not know the operator set: onnx evaluates the model")
            runner = ReferenceEvaluator(model)
            taken = set(runner.input_names)

    def run(arrays: Mapping[str, Longs]) -> tuple[Floats, ...]:
        feed = {
            item.name: arrays[item.canonical].astype(item.dtype)
            for item in inputs
            if item.name in taken
        }
        try:
            return tuple(runner.run(list(outputs), feed))
        except Exception as error:  # as above
            raise ModelSourceError(
                "ONNX Runtime cannot run the model",
                where=where,
                why=error_lines(error)[0],
                todo="export it again; verify=False imports it without comparing it with itself",
            ) from error

    return run


@contextmanager
def _outputs_changed(
    model: onnx.ModelProto, outputs: Sequence[str], nodes: Sequence[onnx.NodeProto]
) -> Iterator[None]:
    """Give a model these outputs, and nodes that compute them, for the length of a block."""
    graph = model.graph
    before, count = list(graph.output), len(graph.node)
    known = {item.name: item for item in before}
    try:
        graph.node.extend(nodes)
        del graph.output[:]
        graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
        yield
    finally:
        del graph.node[count:]
        del graph.output[:]
        graph.output.extend(before)


def _quiet_onnxruntime() -> Any:
    """ONNX Runtime without telemetry.

    When it is imported it stores an id of the device in the user's cache folder, and later looks up
    a host of its maker, unless this variable says no by then.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(model: onnx.ModelProto, options: Any) -> Any:
    onnxruntime = _quiet_onnxruntime()
    if model.ByteSize() < _LARGEST:
        data = model.SerializeToString()
        return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        file = Path(folder) / "model.onnx"
        onnx.save_model(copy, file, save_as_external_data=True, location="data")
        return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


# ONNX models in 16-bit floats: the same model in float32, with exactly the same weights.


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that computes in float32 what `model` computes in float16 or bfloat16.

    Weights keep their values, which float32 holds exactly; sums are no longer rounded to 16 bits.
    Casts to such a type become casts to float32.

    Parameters
    ----------
    model
        All its data in memory; left as it is.

    Returns
    -------
    onnx.ModelProto
        A copy, or the model itself where it has no such type.
    """
    if not _short(model.graph):
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    for part, field in _short(changed.graph):
        if isinstance(part, TensorProto):
            array = numpy_helper.to_array(part).astype("float32")
            part.CopyFrom(numpy_helper.from_array(array, part.name))
        else:
            setattr(part, field, TensorProto.FLOAT)
    return changed


_NAMED_TYPES = ("to", "dtype", "stash_type", "softmax_precision")
"""Attributes of ONNX operators that name a type."""


def _short(graph: onnx.GraphProto) -> list[tuple[Any, str]]:
    """Parts of a graph whose type has 16 bits, and the field that says so."""
    fields = [(part, _type_field(part)) for part in messages(graph)]
    short = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return [(part, name) for part, name in fields if name and getattr(part, name) in short]


def _type_field(part: object) -> str:
    if isinstance(part, TensorProto):
        return "data_type"
    if isinstance(part, onnx.TypeProto.Tensor):
        return "elem_type"
    return "i" if isinstance(part, onnx.AttributeProto) and part.name in _NAMED_TYPES else ""


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
    for item in graph.initializer:
        if item.data_type == TensorProto.DOUBLE and len(item.dims) > 1:
            raise UnsupportedModelError(
                "the model's weights are double",
                where=f"{source}, initializer {item.name}",
                why="calibration measures ranges in float32",
                todo="export the model in float32",
            )
