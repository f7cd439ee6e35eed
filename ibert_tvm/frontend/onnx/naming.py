"""Names of weights, recovered where exporters have lost them.

Canonical names are module paths, because people know their model by them. Exporters keep the names
of parameters that they store as they are, and invent names (``onnx::MatMul_123``, ``val_17``) for
those that they transposed, or store equal parameters once under the name of the first. What is lost
is recovered from where the node stands: from the scope in its name or metadata, else from the bias
that is added to its result.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence

import onnx

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
_INVENTED = re.compile(r"(onnx::|_*val_?\d|_?\d|_?const|const_fold|/|.*_output_\d)", re.IGNORECASE)
_SCOPES = "pkg.torch.onnx.name_scopes"


def label(node: onnx.NodeProto) -> str:
    """Return how a node is called in reports: by its name, else by its first output."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def is_path(name: str) -> bool:
    """Tell whether `name` is a module path such as ``encoder.layer.0.dense.weight``."""
    return _PATH.fullmatch(name) is not None


class Naming:
    """Names of the weights that the nodes of one graph read.

    Parameters
    ----------
    nodes
        All nodes.
    """

    def __init__(self, nodes: Sequence[onnx.NodeProto]) -> None:
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._producers: dict[str, onnx.NodeProto] = {}
        for node in nodes:
            for name in node.input:
                self._readers[name].append(node)
            for name in node.output:
                self._producers[name] = node

    def producer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that computes a tensor, casts aside; None for inputs and weights."""
        node = self._producers.get(name)
        while node is not None and node.op_type in ("Cast", "Identity"):
            node = self._producers.get(node.input[0])
        return node

    def weight(self, node: onnx.NodeProto, source: str, part: str) -> str:
        """Name a weight that `node` reads.

        Parameters
        ----------
        node
            The reader.
        source
            Name of the initializer; empty for a constant without one.
        part
            What it is to the node: ``weight`` or ``bias``.

        Returns
        -------
        str
            A module path where one can be found.
        """
        scope = scope_of(node)
        if is_path(source):
            layer, _, last = source.rpartition(".")
            # Stored once for several equal parameters: the scope tells which one this is.
            shared = len(self._readers[source]) > 1 and node.op_type == "LayerNormalization"
            return f"{scope}.{last}" if shared and scope and scope != layer else source
        if scope:
            return f"{scope}.{part}"
        neighbour = self._layer_of_neighbour(node)
        if neighbour:
            return f"{neighbour}.{part}"
        if source and not _INVENTED.match(source):
            return source
        return f"{label(node).strip('/').replace('/', '.')}.{part}"

    def _layer_of_neighbour(self, node: onnx.NodeProto) -> str:
        """Layer of a parameter with a path that the node reads, or that is added to its result."""
        readers = self._readers[node.output[0]] if node.output else []
        added = [reader for reader in readers if reader.op_type in ("Add", "BiasGelu", "FastGelu")]
        for reader in (node, *added):
            for name in reader.input:
                if is_path(name) and name.rpartition(".")[2] in ("bias", "weight", "beta", "gamma"):
                    return name.rpartition(".")[0]
        return ""


def scope_of(node: onnx.NodeProto) -> str:
    """Return the module path in which an exporter says that a node stands; empty if unknown."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
            except (SyntaxError, ValueError):
                break
            paths = [str(item) for item in scopes[:-1]] if isinstance(scopes, list) else []
            return paths[-1] if paths else ""
    if node.name.startswith("/"):
        return ".".join(node.name.strip("/").split("/")[:-1])
    return ""
