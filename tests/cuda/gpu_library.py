"""The tiny library of the runtime's tests, compiled for a GPU: three kernels per shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cuda.stand_in_gpu import images_for_stand_in
from tests.runtime.conftest import TinyModel


@dataclass(frozen=True)
class TinyGpuModel(TinyModel):
    """What `TinyModel` computes, with kernels for a GPU that stands in for a T4."""

    target: str = "t4"

    def build(self, path: Path) -> Path:
        """Compile and export it."""
        import tvm
        from tvm import relax
        from tvm.s_tir import dlight

        from ibert_tvm.targets import get_target
        from ibert_tvm.targets.build import build_for_gpu
        from ibert_tvm.targets.export import export_library

        description = get_target(self.target)
        target = tvm.target.Target(dict(description.tvm_target))
        passes = [
            relax.transform.LegalizeOps(),
            relax.transform.RewriteDataflowReshape(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
        ]
        with target:
            module = tvm.transform.Sequential(passes)(self.module())
        with images_for_stand_in():
            built = build_for_gpu(module, description)
            metadata = {
                **self.metadata,
                "target": {"name": self.target, "kind": "cuda"},
                "cuda": built.report,
                **self.metadata_changes,
            }
            for function in metadata["functions"]:
                kernels = _kernels(module, function["name"])
                function["kernels"] = [
                    {"name": name, "kind": "tiny", "layer": f"layer.{index}", "macs": 0}
                    for index, name in enumerate(kernels)
                ]
            parameters = {"table": self.table, "bias": self.bias}
            export_library(
                built.executable, parameters, metadata, description, path, device=built.device
            )
        return path


def _kernels(module: Any, name: str) -> list[str]:
    """Kernels that a function calls, in order; TVM makes a view of what only adds an axis."""
    bindings = [b for block in module[name].body.blocks for b in block.bindings]
    names = [
        binding.value.args[0].name_hint
        for binding in bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir"
    ]
    return [name for name in names if not name.startswith("expand_dims")]
