"""A pooling over the tokens: that of a sentence-transformers folder, or the mean."""

from .record import Head, Layer, OnnxOutput, PooledTokens, register_head

register_head(
    Head(
        name="sentence_embedding",
        output="sentence_embedding",
        kind="embedding",
        finish=PooledTokens(),
        onnx=OnnxOutput(("sentence_embedding",), precedence=3, normalised=False),
        checkpoint=(Layer("pooling", "pooling"),),
        methods=("encode",),
    )
)
