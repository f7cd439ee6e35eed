"""Fine-tuning from files, killed and gone on with."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ibert_tvm as ibert
from ibert_tvm.cli import main
from ibert_tvm.common.errors import OutputError, UsageError
from ibert_tvm.relay_passes.integer.operators.linear import NibbleLinear
from ibert_tvm.tasks.samples import Labelled
from ibert_tvm.train.examples import Examples
from ibert_tvm.train.finetune import finetune
from ibert_tvm.train.settings import FinetuneSettings
from tests.commands import Ibert
from tests.examples import examples
from tests.snapshots import Messages

WORDS = [f"word{number}" for number in range(40)]
SETTINGS = ["--float-epochs", 1, "--epochs", 2, "--batch", 4, "--seq-len", 16, "--seed", 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT without a head, and its vocabulary."""
    place = tmp_path_factory.mktemp("finetune") / "source"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    torch.manual_seed(0)
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=48,
            max_position_embeddings=24,
            type_vocab_size=1,
        )
    ).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return place


def texts(count: int) -> list[tuple[str, str]]:
    """Texts, and which half of the words they are of."""
    random = np.random.default_rng(2)
    rows = []
    for number in range(count):
        half = number % 2
        words = random.choice(WORDS[20 * half : 20 * half + 20], 6)
        rows.append((" ".join(words), ("first", "second")[half]))
    return rows


def write_tsv(path: Path, count: int = 40) -> Path:
    lines = ["sentence\tlabel", *("\t".join(row) for row in texts(count))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def questions(rows: list[tuple[str, str]]) -> dict[str, Any]:
    """As SQuAD has them: the answer is the only word of the other half."""
    paragraphs = []
    for place, (text, half) in enumerate(rows):
        words = text.split()
        answer = WORDS[-1] if half == "first" else WORDS[0]
        words[place % 5] = answer
        context = " ".join(words)
        found = {"text": answer, "answer_start": context.index(answer)}
        question = {"question": WORDS[20], "answers": [found]}
        paragraphs.append({"context": context, "qas": [question]})
    return {"data": [{"paragraphs": paragraphs}]}


def integers(trained: Path) -> dict[str, Any]:
    """Those that are deployed."""
    quantized = ibert.quantize(ibert.load(trained, verify=False))
    return dict(quantized.parameters)


def killed_after(sign: Path, words: list[str]) -> None:
    """Run a command line; once a file is there, this process is killed when it opens a next one."""

    def kill(event: str, _arguments: object) -> None:
        if event == "open" and sign.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    main(words)


@pytest.mark.slow(seconds=30)
def test_a_training_that_was_killed_ends_with_the_same_integers(
    folder: Path, tmp_path: Path, ibert_command: Ibert
) -> None:
    data = write_tsv(tmp_path / "data.tsv")
    options = ["finetune", folder, "--data", data, *SETTINGS, "--json"]
    more = ["-o", tmp_path / "whole", "--float-output", tmp_path / "float"]
    document = ibert_command(*options, *more).document
    floating = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "float")
    assert floating.config.id2label == {0: "first", 1: "second"}
    assert document["labels"] == ["first", "second"] and document["examples"] == 36
    assert document["integers"]["best"] >= document["integers"]["before"]
    work = tmp_path / "killed.training"
    options += ["-o", tmp_path / "killed"]
    processes = multiprocessing.get_context("forkserver")  # which imports torch once
    processes.set_forkserver_preload(["transformers", "ibert_tvm.train.finetune"])
    for sign in ("float.pt", "start", "integers.pt"):  # one kill in each stage, and between
        words = [str(word) for word in options]
        process = processes.Process(target=killed_after, args=(work / sign, words))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    assert ibert_command(*options).code == 0
    assert not work.exists()
    wanted, found = integers(tmp_path / "whole"), integers(tmp_path / "killed")
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    examples(
        ["sst-2", "sts-b", "token-classification", "squad"], "sts-b", "squad", otherwise="record"
    ),
)
def test_a_task_s_own_metric_says_which_epoch_was_best(
    task: str, folder: Path, tmp_path: Path, ibert_command: Ibert
) -> None:
    rows = texts(60)
    data = tmp_path / "data"
    data.mkdir()
    for name, part in (("train", rows[:40]), ("dev", rows[40:])):
        if task == "squad":
            (data / f"{name}.json").write_text(json.dumps(questions(part)), encoding="utf-8")
            continue
        if task == "token-classification":
            tag = {"first": "B-FIRST", "second": "O"}
            blocks = ["\n".join(f"{word} {tag[y]}" for word in x.split()) for x, y in part]
            (data / f"{name}.conll").write_text("\n\n".join(blocks), encoding="utf-8")
            continue
        if task == "sts-b":
            lines = [f"{x}\t{x}\t{len(y) - 5}.5" for x, y in part]
        else:
            lines = [f"{x}\t{int(y == 'second')}" for x, y in part]
        head = "sentence1\tsentence2\tscore" if task == "sts-b" else "sentence\tlabel"
        (data / f"{name}.tsv").write_text("\n".join([head, *lines]), encoding="utf-8")
    more = ["--float-epochs", 8, "--float-learning-rate", 3e-3, "--learning-rate", 1e-5]
    options = ["--task", task, "--data", data, *SETTINGS, *more, "-o", tmp_path / "out"]
    document = ibert_command("finetune", folder, *options, "--json").document
    assert (document["examples"], document["dev_examples"]) == (40, 20)
    stage = document["integers"]
    scores = [stage["before"], *(entry["score"] for entry in stage["history"])]
    assert stage["best"] == max(scores) and document["float"]["best"] > 50
    # What is deployed has the score that was chosen by.
    ibert.quantize(ibert.load(tmp_path / "out", verify=False)).save(tmp_path / "out.ibert")
    dev = data if task == "sst-2" else next(data.glob("dev.*"))
    options = ["--task", task, "--data", dev, "--seq-len", 16, "--json"]
    measured = ibert_command("eval", tmp_path / "out.ibert", *options).document
    assert measured["metrics"][0]["integer"] == pytest.approx(stage["best"])


@pytest.mark.slow
def test_embeddings_are_distilled_without_labels(folder: Path, tmp_path: Path) -> None:
    data = Examples.of_texts([text for text, _ in texts(48)])
    settings = FinetuneSettings(
        preset="paper",
        epochs=2,
        batch_size=8,
        learning_rate=1e-5,
        distillation="embeddings",
        calibration=16,
    )
    result = finetune(folder, data, tmp_path / "out", settings)
    assert result.float_stage is None and result.labels == ()
    stage = result.integer_stage
    scores = [entry["score"] for entry in stage["history"]]
    assert len(scores) == 2 and stage["steps"] == 2 * 6
    assert stage["best"] == max(stage["before"], *scores)
    trained = ibert.load(tmp_path / "out", verify=False).trained
    assert trained is not None and trained.preset == "paper"


@pytest.mark.slow
def test_biases_and_norms_are_trained_alone(folder: Path, tmp_path: Path) -> None:
    data = Examples.of_texts([text for text, _ in texts(48)])
    found = {}
    for rate in (0.0, 1e-3):
        settings = FinetuneSettings(
            preset="paper",
            epochs=1,
            batch_size=8,
            learning_rate=rate,
            distillation="embeddings",
            trained="vectors",
            calibration=16,
        )
        place = tmp_path / str(rate)
        stage = finetune(folder, data, place, settings).integer_stage
        assert stage["steps"] == 6
        found[rate] = integers(place)
    changed = {name for name, array in found[0.0].items() if (array != found[1e-3][name]).any()}
    assert any(name.endswith("bias") for name in changed)
    assert not any(found[0.0][name].ndim > 1 for name in changed)


@pytest.mark.slow(seconds=20)
def test_half_bytes_are_trained_and_stay_as_they_were_trained(
    folder: Path, tmp_path: Path, ibert_command: Ibert
) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(text for text, _ in texts(120)), encoding="utf-8")
    sizes = ["--weights", 4, "--word-table-bits", 4]
    options = ["finetune", folder, "--data", data, "--distill", "embeddings", *sizes]
    options += ["--epochs", 4, "--batch", 8, "--seq-len", 16, "--json"]
    stage = ibert_command(*options, "-o", tmp_path / "whole").document["integers"]
    assert stage["best"] > stage["before"]
    words = [str(word) for word in [*options, "-o", tmp_path / "killed"]]
    processes = multiprocessing.get_context("forkserver")
    process = processes.Process(
        target=killed_after, args=(tmp_path / "killed.training" / "integers.pt", words)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "killed").exists()
    assert ibert_command(*options, "-o", tmp_path / "killed").code == 0
    made = {}
    for name in ("whole", "killed"):
        ibert_command("quantize", tmp_path / name, "-o", tmp_path / f"{name}.ibert", *sizes)
        made[name] = ibert.QuantizedModel.load(tmp_path / f"{name}.ibert")
    trained = integers(tmp_path / "whole")
    whole, killed = made["whole"], made["killed"]
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(killed.parameters[name], array, err_msg=name)
    narrow = [step for step in whole.program.steps if isinstance(step.operator, NibbleLinear)]
    assert len(narrow) == 6
    for step in narrow:
        arrays = {name: whole.parameters.get(value) for name, value in step.operands.items()}
        weight = trained[f"{step.name}.weight"]
        found = step.operator.matrix(arrays, weight.shape[1])
        np.testing.assert_array_equal(found, weight, err_msg=step.name)


def test_texts_without_labels_need_something_to_learn(
    messages: Messages, folder: Path, tmp_path: Path
) -> None:
    with messages.raises(UsageError):
        finetune(folder, Examples.of_texts(["a", "b"]), tmp_path / "out")


@pytest.mark.parametrize("unfinished", [False, True])
def test_the_model_of_the_float_stage_needs_a_place_and_a_stage(
    messages: Messages, folder: Path, tmp_path: Path, unfinished: bool
) -> None:
    if unfinished:  # a training that goes on replaces nothing that it did not write, either
        (tmp_path / "out.training").mkdir()
    (tmp_path / "float").mkdir()
    (tmp_path / "float" / "mine").write_text("", encoding="utf-8")
    labelled = Examples(Labelled(["a", "b", "c"], ["0", "1", "0"]))
    with messages.raises(OutputError):
        place = tmp_path / "float"
        finetune(folder, labelled, tmp_path / "out", dev=labelled, float_output=place)
    settings = FinetuneSettings(distillation="embeddings")
    texts_alone = Examples.of_texts(["a", "b", "c"])
    with pytest.raises(UsageError, match="there is no float model to write"):
        finetune(folder, texts_alone, tmp_path / "out", settings, float_output=tmp_path / "new")


def test_logits_of_embeddings_cannot_be_distilled(
    messages: Messages, folder: Path, tmp_path: Path
) -> None:
    data = Examples.of_texts(["a", "b", "c"])
    settings = FinetuneSettings(distillation="logits")
    with messages.raises(UsageError):
        finetune(folder, data, tmp_path / "out", settings)


def test_another_training_is_not_gone_on_with(
    messages: Messages, folder: Path, tmp_path: Path
) -> None:
    work = tmp_path / "out.training"
    work.mkdir()
    (work / "settings.json").write_text("{}", encoding="utf-8")
    data = Examples(Labelled(["a", "b", "c"], ["0", "1", "0"]))
    with messages.raises(UsageError):
        finetune(folder, data, tmp_path / "out", dev=data)


def test_settings_out_of_range_are_refused(messages: Messages) -> None:
    with messages.raises(UsageError):
        FinetuneSettings(dropout=1.5)
    with messages.raises(UsageError):
        FinetuneSettings(distillation="all")
    with messages.raises(UsageError):
        FinetuneSettings(trained="heads")
    with messages.raises(UsageError):
        FinetuneSettings(weights="mixed")
    with messages.raises(UsageError):
        FinetuneSettings(weights="4", trained="vectors")
    with messages.raises(UsageError):
        FinetuneSettings(weights="4", learn_scales=True)
    with messages.raises(UsageError):
        FinetuneSettings(weights="4", preset="released")
