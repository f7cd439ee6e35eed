"""Scores of every token as the first and the last of an answer."""

from .record import Head, LastLayer, Layer, OnnxOutput, register_head

register_head(
    Head(
        name="question_answering",
        output="logits",
        kind="span_logits",
        # The class returns start and end apart; its layer gives both in one product.
        finish=LastLayer("qa_outputs"),
        onnx=OnnxOutput(
            ("logits", "output_logits"), columns=("start_logits", "end_logits"), precedence=4
        ),
        classes=("ForQuestionAnswering",),
        auto_class="AutoModelForQuestionAnswering",
        checkpoint=(Layer("linear", "qa_outputs", 2),),
        methods=("answer",),
        samples=("Questions",),
        pairs=True,
    )
)
