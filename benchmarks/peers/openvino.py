"""OpenVINO: FP32, and INT8 by NNCF's post-training quantisation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Cell, ModelSpec, calibration_batches

from .base import Peer, Run
from .onnx_export import export_onnx

__all__ = ["OpenVinoFloat", "OpenVinoInt8", "OpenVinoInt8Bf16"]


class _OpenVino(Peer):
    packages = (
        ("openvino", "openvino"),
        ("onnx", "onnx"),
        ("torch", "torch"),
        ("transformers", "transformers"),
    )
    # Type of the operations that are not quantised. OpenVINO takes bf16 by itself where the
    # processor has it, so FP32 must be asked for.
    inference_type = "f32"

    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Compile with static shapes (dynamic without a cell) and the latency hint, one stream."""
        import openvino

        core = openvino.Core()
        model = core.read_model(folder / "model.xml")
        if cell is not None:
            model.reshape({port.any_name: [cell.batch, cell.seq_len] for port in model.inputs})
        compiled = core.compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": "1",
                "INFERENCE_NUM_THREADS": str(threads),
                "INFERENCE_PRECISION_HINT": self.inference_type,
            },
        )
        request = compiled.create_infer_request()

        def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
            return request.infer(inputs, share_inputs=True, share_outputs=True)[0]

        return run


class OpenVinoFloat(_OpenVino):
    """FP32 everywhere."""

    name = "openvino-fp32"
    title = "OpenVINO FP32, latency hint, static shape"
    precision = "fp32"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Export to ONNX, read it, save it as IR with FP32 weights."""
        import openvino

        export_onnx(source, folder / "model.onnx")
        model = openvino.Core().read_model(folder / "model.onnx")
        openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
        del model
        (folder / "model.onnx").unlink()


class OpenVinoInt8(_OpenVino):
    """NNCF with its transformer scheme: SmoothQuant, mixed preset, fast bias correction."""

    name = "openvino-int8"
    title = "OpenVINO INT8 (NNCF, transformer scheme), the rest in FP32"
    precision = "int8"
    packages = (*_OpenVino.packages, ("nncf", "nncf"))

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Export, calibrate on the project's texts, quantise."""
        os.environ["NNCF_CI"] = "1"  # no telemetry from a benchmark
        import nncf
        import openvino

        export_onnx(source, folder / "model.onnx")
        model: Any = openvino.Core().read_model(folder / "model.onnx")
        batches = calibration_batches(source)
        quantised = nncf.quantize(
            model,
            nncf.Dataset(batches),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=min(64, len(batches)),
        )
        openvino.save_model(quantised, folder / "model.xml", compress_to_fp16=False)
        del model, quantised
        (folder / "model.onnx").unlink()


class OpenVinoInt8Bf16(OpenVinoInt8):
    """The same artefact, with bf16 for what is not quantised."""

    name = "openvino-int8-bf16"
    title = "OpenVINO INT8 (NNCF, transformer scheme), the rest in bf16"
    inference_type = "bf16"

    def artefact(self, spec: ModelSpec, cell: Cell, cache: Path) -> Path:
        """The artefact of `OpenVinoInt8`."""
        return cache / "artefacts" / spec.name / OpenVinoInt8.name

    def missing(self) -> str | None:
        """Without bf16 instructions OpenVINO would emulate them."""
        try:
            flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            flags = ""
        if "avx512_bf16" not in flags and "amx_bf16" not in flags:
            return "the processor has no bf16 instructions"
        return super().missing()
