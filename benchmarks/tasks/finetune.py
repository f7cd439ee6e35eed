"""Fine-tune MiniLM in floating point on the tasks.

    python -m benchmarks.tasks.finetune --data build/tasks --out build/tasks/models
    python -m benchmarks.tasks.finetune --data build/tasks --out build/tasks/models --frozen

Plain PyTorch and transformers: AdamW, a linear rate with a warm-up, three epochs, the seed said. It
is the float side of every comparison, and where integer fine-tuning begins. With ``--frozen`` only
what is above the encoder is trained (for texts the pooler and the classes, for words the classes),
on hidden states that are computed once: a fraction of the work, and less accurate.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..models import MODELS, model_folder
from .build import TASKS

__all__ = ["LONGEST", "TRAINED", "finetune", "main", "predicted_right"]

LOG = logging.getLogger("benchmarks")
TRAINED = ("sections", "names", "code-words")
LONGEST = 64
"""Tokens that texts are cut off at."""
_BATCH = 32
_RATE = 1e-4
_WARM_UP = 0.1
_HEAD = re.compile(r"^(bert\.pooler|classifier)\.")
_IGNORED = -100  # torch's cross-entropy leaves such labels out


def _rows(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n")[1:] if line]


def _sentences(file: Path) -> list[tuple[list[str], list[str]]]:
    blocks = file.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split(" ") for line in block.split("\n")] for block in blocks]
    return [([row[0] for row in part], [row[1] for row in part]) for part in rows]


def _encoded(name: str, file: Path, tokenizer: Any, labels: list[str]) -> list[dict[str, Any]]:
    """Token ids and the label, or labels per token, of every sample."""
    number = {label: place for place, label in enumerate(labels)}
    samples = []
    if TASKS[name].columns:
        for *texts, label in _rows(file):
            tokens = tokenizer(*texts, truncation=True, max_length=LONGEST)
            samples.append({**tokens, "labels": number[label]})
        return samples
    for words, tags in _sentences(file):
        tokens = tokenizer(words, is_split_into_words=True, truncation=True, max_length=LONGEST)
        places = tokens.word_ids()
        first = [
            number[tags[word]] if word is not None and word != before else _IGNORED
            for word, before in zip(places, [None, *places[:-1]], strict=True)
        ]
        samples.append({**tokens, "labels": first})
    return samples


def _batch(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    length = max(len(sample["input_ids"]) for sample in samples)

    def padded(key: str, fill: int) -> Any:
        rows = [sample[key] + [fill] * (length - len(sample[key])) for sample in samples]
        return torch.tensor(rows)

    batch = {key: padded(key, 0) for key in ("input_ids", "attention_mask", "token_type_ids")}
    whole = isinstance(samples[0]["labels"], int)
    labels = torch.tensor([s["labels"] for s in samples]) if whole else padded("labels", _IGNORED)
    return {**batch, "labels": labels}


def finetune(
    name: str,
    data: Path,
    out: Path,
    epochs: int = 3,
    seed: int = 0,
    frozen: bool = False,
    samples: int | None = None,
) -> Path:
    """Fine-tune MiniLM on a task.

    Parameters
    ----------
    name : str
        One of `TRAINED`.
    data : pathlib.Path
        Where `benchmarks.tasks.build` wrote the tasks.
    out : pathlib.Path
        Folder of the fine-tuned model.
    epochs, seed : int
        Passes over the training set; of the new head and of the order.
    frozen : bool
        Train the head alone, ten times as many epochs at ten times the rate.
    samples : int, optional
        Train on the first so many: their order follows from their texts' hashes.

    Returns
    -------
    pathlib.Path
        `out`, which transformers and `ibert quantize` read.
    """
    import torch
    import transformers

    from ibert_tvm.train.loop import shuffled

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    source = model_folder(MODELS["minilm"], out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    whole = bool(TASKS[name].columns)
    suffix = "tsv" if whole else "conll"
    files = {split: data / name / f"{split}.{suffix}" for split in ("train", "dev")}
    found = (
        {row[-1] for row in _rows(files["train"])}
        if whole
        else {tag for _, tags in _sentences(files["train"]) for tag in tags}
    )
    labels = sorted(found)
    head = f"AutoModelFor{'Sequence' if whole else 'Token'}Classification"
    model = getattr(transformers, head).from_pretrained(
        source,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
    )
    train, dev = (_encoded(name, file, tokenizer, labels) for file in files.values())
    train = train[:samples]
    dev.sort(key=lambda sample: len(sample["input_ids"]))  # so that little of a batch is padding
    rate = _RATE
    if frozen:
        _compute_hidden([*train, *dev], model, whole)
        epochs, rate = 10 * epochs, 10 * rate
    steps = epochs * -(-len(train) // _BATCH)
    trained = [p for n, p in model.named_parameters() if not frozen or _HEAD.search(n)]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimiser, round(_WARM_UP * steps), steps
    )
    generator = np.random.default_rng(seed)
    started = time.process_time()
    for epoch in range(epochs):
        model.train()
        order = shuffled(generator, [len(sample["input_ids"]) for sample in train], _BATCH)
        losses = []
        for start in range(0, len(order), _BATCH):
            logits, labels_of = _forward(model, [train[i] for i in order[start : start + _BATCH]])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), labels_of.flatten(), ignore_index=_IGNORED
            )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        LOG.info(
            "%s: epoch %d, loss %.4f, dev accuracy %.4f, %.0f s of processor time",
            *(name, epoch + 1, np.mean(losses), _accuracy(model, dev)),
            time.process_time() - started,
        )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _compute_hidden(samples: list[dict[str, Any]], model: Any, whole: bool) -> None:
    """Give every sample its hidden states: of the first token where the head reads no other."""
    import torch

    model.eval()
    order = sorted(range(len(samples)), key=lambda place: len(samples[place]["input_ids"]))
    with torch.no_grad():
        for start in range(0, len(order), _BATCH):
            chosen = [samples[place] for place in order[start : start + _BATCH]]
            batch = _batch(chosen)
            del batch["labels"]
            hidden = model.bert(**batch).last_hidden_state
            for sample, row in zip(chosen, hidden, strict=True):
                sample["hidden"] = row[: 1 if whole else len(sample["input_ids"])].clone()


def _forward(model: Any, samples: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Logits [samples, classes] or [samples, tokens, classes], and labels of the same axes."""
    import torch

    batch = _batch(samples)
    labels = batch.pop("labels")
    if "hidden" not in samples[0]:
        return model(**batch).logits, labels
    hidden = torch.nn.utils.rnn.pad_sequence([s["hidden"] for s in samples], batch_first=True)
    top = model.bert.pooler(hidden) if labels.ndim == 1 else hidden
    return model.classifier(model.dropout(top)), labels


def _accuracy(model: Any, samples: list[dict[str, Any]]) -> float:
    """Share of right samples, or tokens."""
    import torch

    model.eval()
    right = total = 0
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            logits, labels = _forward(model, samples[start : start + _BATCH])
            counted = labels != _IGNORED
            right += int(((logits.argmax(-1) == labels) & counted).sum())
            total += int(counted.sum())
    return right / total


def predicted_right(name: str, model: Any, tokenizer: Any, file: Path) -> np.ndarray:
    """Whether each text, or word, of a set gets its class; bool [texts or words].

    Parameters
    ----------
    name : str
        One of `TRAINED`.
    model, tokenizer
        Of transformers.
    file : pathlib.Path
        A split.
    """
    import torch

    model.eval()
    labels = [model.config.id2label[place] for place in range(model.config.num_labels)]
    samples = _encoded(name, file, tokenizer, labels)
    samples.sort(key=lambda sample: len(sample["input_ids"]))
    found = []
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            logits, gold = _forward(model, samples[start : start + _BATCH])
            counted = gold != _IGNORED
            found.append((logits.argmax(-1) == gold)[counted].numpy())
    return np.concatenate(found)


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks.finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks")
    parser.add_argument("--out", type=Path, required=True, help="folder of the models")
    parser.add_argument("--tasks", default=",".join(TRAINED), help="comma-separated")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true", help="train the head alone")
    parser.add_argument("--samples", type=int, help="train on the first so many alone")
    options = parser.parse_args(arguments)
    for name in options.tasks.split(","):
        if name not in TRAINED:
            parser.error(f"--tasks: {name!r} is none of {', '.join(TRAINED)}")
        finetune(
            *(name, options.data, options.out / name),
            *(options.epochs, options.seed, options.frozen, options.samples),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
