"""Scores of the classes of an image."""

from .record import Head, OnnxOutput, Returned, register_head

register_head(
    Head(
        name="image_classification",
        output="logits",
        kind="logits",
        finish=Returned("logits"),
        onnx=OnnxOutput(("logits", "output_logits"), rank=2, precedence=5),
        tokens=False,
        reals=True,
        classes=("ForImageClassification", "ForImageClassificationWithTeacher"),
        auto_class="AutoModelForImageClassification",
        labelled=True,
    )
)
