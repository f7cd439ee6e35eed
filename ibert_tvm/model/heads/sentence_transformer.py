"""Everything that a sentence-transformers folder computes of a text."""

from .record import Head, OnnxOutput, WholePipeline, register_head

register_head(
    Head(
        name="sentence_transformer",
        output="sentence_embedding",
        kind="embedding",
        finish=WholePipeline(),
        onnx=OnnxOutput(("sentence_embedding",), precedence=3, normalised=True),
        methods=("encode",),
    )
)
