"""Scores of the classes of every token."""

from .record import Head, Layer, OnnxOutput, Returned, register_head

register_head(
    Head(
        name="token_classification",
        output="logits",
        kind="token_logits",
        finish=Returned("logits"),
        onnx=OnnxOutput(("logits", "output_logits"), rank=3, precedence=5),
        classes=("ForTokenClassification",),
        unlabelled=("ForMaskedLM",),
        auto_class="AutoModelForTokenClassification",
        labelled=True,
        checkpoint=(Layer("linear", "classifier", "labels"),),
        methods=("tag",),
        samples=("Tagged",),
    )
)
