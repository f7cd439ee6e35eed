"""Scores of the classes of a text or a pair, or one figure."""

from .record import Head, Layer, OnnxOutput, Returned, register_head

register_head(
    Head(
        name="sequence_classification",
        output="logits",
        kind="logits",
        finish=Returned("logits"),
        onnx=OnnxOutput(("logits", "output_logits"), rank=2, precedence=5),
        classes=("ForSequenceClassification",),
        unlabelled=("ForNextSentencePrediction",),
        auto_class="AutoModelForSequenceClassification",
        labelled=True,
        checkpoint=(
            Layer("first_token", "classifier"),
            Layer("linear", "classifier.dense"),
            Layer("tanh", "classifier.tanh", module="classifier"),
            Layer("linear", "classifier.out_proj", "labels"),
        ),
        methods=("classify", "rerank"),
        samples=("Labelled", "Scored"),
        pairs=True,
    )
)
