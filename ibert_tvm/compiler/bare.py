"""The signature of a program without runtime, read from what a library says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.strict_json import JsonObject

if TYPE_CHECKING:
    from ibert_tvm.targets.aot import Interface

    from ..model.model_info import ModelInfo


def bare_interface(metadata: JsonObject, info: ModelInfo, prefix: str) -> Interface:
    """Describe inputs and outputs for `ibert_tvm.targets.aot.compile_bare`.

    Parameters
    ----------
    metadata
        Of the library: ``functions``, ``inputs`` and ``outputs``.
    info
        The model: how many ids there are, and which one fills up.
    prefix
        What its C names begin with.

    Returns
    -------
    ibert_tvm.targets.aot.Interface
        Ids are limited to the vocabulary, token types to those of the model, masks to 0 and 1, as
        `ibert_tvm.runtime.inputs.check_inputs` does; images to what their quantisation gives.
    """
    from ibert_tvm.targets.aot import Interface, ShapeSpec, TensorSpec

    limits = {
        "input_ids": (0, info.vocab_size - 1),
        "attention_mask": (0, 1),
        "token_type_ids": (0, info.type_vocab_size - 1),
    }
    inputs = []
    for row in metadata["inputs"]:
        scaled = bool(row.get("scale"))
        low, high = (row["low"], row["high"]) if scaled else limits.get(row["name"], (None, None))
        axes = info.image_size or ("seq_len",)
        inputs.append(
            TensorSpec(
                name=row["name"],
                dtype=row["dtype"],
                shape=("batch", *axes),
                scale=float(row.get("scale", 0.0)),
                zero_point=int(row.get("zero_point", 0)),
                low=low,
                high=high,
            )
        )
    outputs = [
        TensorSpec(row["name"], row["dtype"], tuple(row["shape"]), float(row["scale"]))
        for row in metadata["outputs"]
    ]
    return Interface(
        functions=tuple(
            ShapeSpec(row["name"], row["batch"], row["seq_len"]) for row in metadata["functions"]
        ),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        pad_token_id=None if info.image_size else info.pad_token_id,
        source_sha256=str(metadata["source_sha256"]),
        prefix=prefix,
    )
