"""Importing ONNX models: float graphs in any exporter's spelling.

`read_model` reads and checks a file, `import_onnx_model` brings a model in memory to the canonical
form: nodes become plain Relax at a probe shape (`translator`, `operators_*`), and the canonicaliser
does the rest, as it does for torch. Importing this package imports neither TVM nor onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ibert_tvm.frontend.onnx.reading import read_model

if TYPE_CHECKING:
    from ibert_tvm.frontend.onnx.importing import import_onnx_model

__all__ = ["import_onnx_model", "read_model"]


def __getattr__(name: str) -> Any:
    if name == "import_onnx_model":
        from ibert_tvm.frontend.onnx.importing import import_onnx_model

        return import_onnx_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
