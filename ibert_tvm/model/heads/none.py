"""The encoder's hidden state, without a head."""

from .record import Head, OnnxOutput, Returned, register_head

register_head(
    Head(
        name="none",
        output="last_hidden_state",
        kind="hidden_state",
        finish=Returned("last_hidden_state"),
        onnx=OnnxOutput(("last_hidden_state", "token_embeddings"), rank=3, only=True, precedence=2),
        reals=True,
        checkpoint=(),
        methods=("token_embeddings",),
    )
)
