"""Examples as tensors: classes in their order, and words by their first tokens."""

from __future__ import annotations

import numpy as np

from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.model.tokenization import TokenizedBatch, Tokenizer
from ibert_tvm.tasks import Side
from ibert_tvm.tasks.samples import Labelled, Questions, Scored, Tagged
from ibert_tvm.train.examples import Examples
from ibert_tvm.train.objectives import Objective, class_names
from tests.snapshots import Messages

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "##s", "three"]
TAGGED = Examples(Tagged([["ones", "two"], ["three"]], [["B-X", "O"], ["I-X"]]))


def tokenizer() -> Tokenizer:
    return Tokenizer({"vocab.txt": "\n".join(VOCABULARY).encode()})


def test_classes_are_in_natural_order_or_the_model_s_own() -> None:
    data = Examples(Labelled(["a", "b", "c"], ["10", "9", "no"]))
    assert class_names(data, data) == ("9", "10", "no")
    assert class_names(data, data, ["No", "9", "10"]) == ("No", "9", "10")
    assert class_names(data, data, ["a", "b", "c"]) == ("9", "10", "no")
    objective = Objective(data, ("No", "9", "10"), tokenizer(), 8)
    assert objective.labels([0, 1, 2])["labels"].tolist() == [2, 1, 0]


def test_numbers_have_no_classes() -> None:
    data = Examples(Scored(["one", "two"], [0.5, 2.0]))
    assert class_names(data, data) == ()
    assert Objective(data, (), tokenizer(), 8).labels([1, 0])["labels"].tolist() == [2.0, 0.5]


def test_a_word_s_class_is_at_its_first_token() -> None:
    names = class_names(TAGGED, TAGGED)
    assert names == ("B-X", "I-X", "O")
    objective = Objective(TAGGED, names, tokenizer(), 8)
    ids = objective.inputs([0, 1], ["input_ids"])["input_ids"]
    assert ids.tolist() == [[2, 5, 7, 6, 3], [2, 8, 3, 0, 0]]
    assert objective.labels([0, 1])["labels"].tolist() == [
        [-100, 0, -100, 2, -100],
        [-100, 1, -100, -100, -100],
    ]
    cut = Objective(TAGGED, names, tokenizer(), 4)
    assert cut.labels([0])["labels"].tolist() == [[-100, 0, -100, -100]]


def test_what_is_learned_is_what_is_measured() -> None:
    """A model that gives the labels of the training has all points of the task."""
    names = class_names(TAGGED, TAGGED)
    objective = Objective(TAGGED, names, tokenizer(), 8)

    def run(tokens: TokenizedBatch) -> list[np.ndarray]:
        wanted = objective.inputs([0, 1], ["input_ids"])["input_ids"].numpy()
        np.testing.assert_array_equal(tokens.input_ids, wanted)
        labels = objective.labels([0, 1])["labels"].numpy()
        return [np.eye(len(names), dtype=np.float32)[np.where(labels < 0, 2, labels)]]

    output = OutputInfo("logits", "logits", "token_logits")
    labels = dict(enumerate(names))
    info = ModelInfo(
        "", "token_classification", ("input_ids",), (output,), 0, 0, 0, id2label=labels
    )
    assert TAGGED.score(Side(info, tokenizer(), 8, run)) == 100.0


ANSWERS = Examples(
    Questions(
        [("one", "two twos three one"), ("one", "two three"), ("one", "two two two ones")],
        [("twos three", "one"), (), ("ones",)],
        True,
        [4, -1, 12],
    )
)


def test_an_answer_is_its_first_and_last_token() -> None:
    """Of the window that has it whole; no answer is the first token of a window."""
    assert Objective.head_of(ANSWERS) == "question_answering"
    assert class_names(ANSWERS, ANSWERS) == ()
    objective = Objective(ANSWERS, (), tokenizer(), 16)
    inputs = objective.inputs([0, 1], ["input_ids", "token_type_ids"])
    assert inputs["input_ids"][0].tolist() == [2, 5, 3, 6, 6, 7, 8, 5, 3]
    labels = objective.labels([0, 1])
    assert (labels["start_positions"].tolist(), labels["end_positions"].tolist()) == (
        [4, 0],
        [6, 0],
    )
    short = Objective(ANSWERS, (), tokenizer(), 7)
    assert short.inputs([2], ["input_ids"])["input_ids"].tolist() == [[2, 5, 3, 6, 5, 7, 3]]
    assert [part.tolist() for part in short.labels([2]).values()] == [[4], [5]]
    cut = Objective(ANSWERS, (), tokenizer(), 6)  # no window has all of "twos three"
    assert [part.tolist() for part in cut.labels([0]).values()] == [[0], [0]]
    assert cut.lengths == (6, 6, 6)


def test_labels_that_cannot_be_learned(messages: Messages) -> None:
    data = Examples(Labelled(["a", "b"], ["x", "y"]))
    with messages.raises(UsageError):
        class_names(data, Examples(Labelled(["a"], ["z"])))
    same = Examples(Labelled(["a", "b"], ["x", "x"]))
    with messages.raises(UsageError):
        class_names(same, same)
