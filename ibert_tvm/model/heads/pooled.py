"""The pooler of an encoder: one vector per text or image."""

from .record import Head, Layer, OnnxOutput, Returned, register_head

register_head(
    Head(
        name="pooled",
        output="pooled",
        kind="pooled",
        finish=Returned("pooler_output"),
        onnx=OnnxOutput(("pooler_output", "pooled_output"), rank=2, only=True, precedence=1),
        reals=True,
        checkpoint=(
            Layer("first_token", "pooler"),
            Layer("linear", "pooler.dense"),
            Layer("tanh", "pooler.activation"),
        ),
        methods=("encode",),
    )
)
