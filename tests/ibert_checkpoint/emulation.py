"""transformers' own quantised modules, with the scale of every layer handed to the next.

`IBertEncoder.forward` gives each layer the scale of the embeddings. `run_propagated` calls the same
modules in the same order with the scale that the previous one returned, and changes nothing else.
`exact_floats` then takes away the second defect, that float32 cannot hold the integers: modules run
in float64, weights, biases and scales keep their float32 values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers.models.ibert import quant_modules

# An integer that was multiplied by its scale and divided again may come out just below itself, and
# a floor would take one off. Real fractions in these floors are coarser than this.
NUDGE = 1e-7


def run_propagated(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Integers that leave the layers of a base model: its 8-bit values divided by their scales."""
    tokens = {name: torch.from_numpy(array) for name, array in inputs.items()}
    kind = next(model.parameters()).dtype
    seen: dict[str, np.ndarray] = {}

    def see(name: str, hidden: torch.Tensor, scale: torch.Tensor) -> None:
        seen[name] = torch.round(hidden / scale).to(torch.int64).numpy()

    with torch.no_grad():
        hidden, scale = model.embeddings(
            input_ids=tokens["input_ids"], token_type_ids=tokens.get("token_type_ids")
        )
        see("embeddings.LayerNorm.grid", hidden, scale)
        hole = (1.0 - tokens["attention_mask"].to(kind)) * torch.finfo(torch.float32).min
        mask = hole[:, None, None, :]
        for index, layer in enumerate(model.encoder.layer):
            path = f"encoder.layer.{index}"
            outputs, scales = layer.attention(hidden, scale, mask)
            see(f"{path}.attention.output.LayerNorm.grid", outputs[0], scales[0])
            y, y_scale = layer.pre_intermediate_act(outputs[0], scales[0])
            inner, inner_scale = layer.intermediate(y, y_scale)
            see(f"{path}.intermediate.gelu.grid", inner, inner_scale)
            inner, inner_scale = layer.pre_output_act(inner, inner_scale)
            hidden, scale = layer.output(inner, inner_scale, y, y_scale)
            see(f"{path}.output.LayerNorm.grid", hidden, scale)
    return seen


@contextmanager
def exact_floats(monkeypatch: Any) -> Iterator[None]:
    """Let the modules compute in float64 with the float32 weights, biases and scales."""
    parameters = quant_modules.symmetric_linear_quantization_params

    def scale_in_float32(bits: int, low: Any, high: Any, per_channel: bool = False) -> Any:
        return parameters(bits, low.float(), high.float(), per_channel).double()

    def quantise_in_float32(x: Any, scale: Any, zero_point: Any, inplace: bool = False) -> Any:
        shape = (-1, 1) if x.dim() == 2 else (-1,)
        return torch.round(1.0 / scale.float().view(shape) * x.float()).double()

    def floor(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x + NUDGE)

    with monkeypatch.context() as patch:
        patch.setattr(quant_modules, "symmetric_linear_quantization_params", scale_in_float32)
        patch.setattr(quant_modules, "linear_quantize", quantise_in_float32)
        patch.setattr(quant_modules.floor_ste, "forward", staticmethod(floor))
        yield
