"""The ONNX file that ONNX Runtime and OpenVINO start from, and its fused form."""

from __future__ import annotations

from pathlib import Path

from benchmarks.models import ModelSpec

__all__ = ["export_onnx", "fuse_onnx"]


def export_onnx(source: Path, path: Path) -> None:
    """Export ``last_hidden_state`` with symbolic batch and length.

    The attention is the eager one and the exporter the TorchScript one: ONNX Runtime's fusions
    know the patterns that these two produce.

    Parameters
    ----------
    source : Path
        Hugging Face folder.
    path : Path
        File to write.
    """
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(
        source, attn_implementation="eager", dtype=torch.float32
    ).eval()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
            return outputs.last_hidden_state

    ids = torch.ones((2, 16), dtype=torch.int64)
    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        Encoder().eval(),
        (ids, ids),
        str(path),
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_axes={name: axes for name in ("input_ids", "attention_mask", "last_hidden_state")},
        opset_version=17,
        do_constant_folding=True,
        dynamo=False,
    )


def fuse_onnx(source: Path, path: Path, spec: ModelSpec) -> dict[str, int]:
    """Run ONNX Runtime's transformers optimiser.

    Returns
    -------
    dict
        Number of fused operators by kind.

    Raises
    ------
    RuntimeError
        If attention, GELU or LayerNorm was not fused in every layer: an unfused peer would be
        slower than what its users run, and the comparison unfair.
    """
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    fused = optimizer.optimize_model(
        str(source),
        model_type="bert",
        num_heads=spec.heads,
        hidden_size=spec.hidden,
        optimization_options=FusionOptions("bert"),
        opt_level=0,
    )
    counts = dict(fused.get_fused_operator_statistics())
    gelu = counts.get("Gelu", 0) + counts.get("BiasGelu", 0) + counts.get("FastGelu", 0)
    norm = counts.get("SkipLayerNormalization", 0)
    attention = counts.get("Attention", 0) + counts.get("MultiHeadAttention", 0)
    if attention != spec.layers or gelu != spec.layers or norm < 2 * spec.layers:
        raise RuntimeError(f"ONNX Runtime's optimiser left operators unfused: {counts}")
    fused.save_model_to_file(str(path), use_external_data_format=False)
    return counts
