"""`finetune`: a float model and examples to a model that was trained with its integers.

Two stages, as in I-BERT's paper: float, for which the model gets a head if it lacks one, then
integers. Beside the output lies the folder of the training until it is done, from which one that
was killed goes on.
"""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.errors import UsageError
from ..common.files import OutputKind, check_writable, files_sha256, write_folder
from ..common.strict_json import JsonDict
from ..frontend import load
from ..frontend.hf_folder import HfFolder
from ..frontend.source_model import build, model_config
from ..frontend.source_tokenizer import source_tokenizer
from ..frontend.transformers_import import float_module, input_names
from ..model.heads import HEADS, head_of_class
from ..model.model_info import ModelInfo, OutputInfo
from ..model.tokenization import TokenizedBatch, Tokenizer, tokenizer_files
from ..tasks import Side
from .examples import Examples
from .loop import Loop, Schedule, Tracked
from .losses import embedding_loss, logits_loss
from .module import TRAINED
from .narrow import begin, hidden_distance
from .objectives import Objective, class_names, head_settings
from .preparation import prepare
from .settings import FinetuneSettings

_logger = logging.getLogger(__name__)
_DEV_SHARE = 0.1
_SETTINGS, _FLOAT, _START, _HISTORY = "settings.json", "float", "start", "history.json"
_TRAINING, _WEIGHTS = ".training", "model.safetensors"
_BEGUN = OutputKind("a new folder", lambda _: False, folder=True)
_FAR_BELOW = -1e4
"""A logit of padding: its share of a softmax is 0."""


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning has come to.

    Attributes
    ----------
    float_stage : dict or None
        History of the float stage, with the best score of the dev set: the first metric of the
        task, in points, or without labels the negative distance from the float model. None if
        there was none.
    integer_stage : dict
        The same with integers; ``before`` is the score of calibration alone.
    labels
        Names of the classes, in the order of the logits.
    examples, dev_examples
        How many there were.
    """

    float_stage: JsonDict | None
    integer_stage: JsonDict
    labels: tuple[str, ...]
    examples: int
    dev_examples: int


def finetune(
    model: str | Path,
    data: Examples,
    output: str | Path,
    settings: FinetuneSettings | None = None,
    dev: Examples | None = None,
    progress: Callable[[str], Any] | None = None,
    float_output: str | Path | None = None,
) -> FinetuneResult:
    """Tune a model with the integers that will run.

    Parameters
    ----------
    model
        A Hugging Face folder of a float model.
    data
        What it is tuned on.
    output
        The folder to write; `ibert quantize` and ``from_pretrained`` read it.
    settings
        By default the paper's recipe.
    dev
        What decides which epoch was best; by default a tenth of the data is taken apart.
    progress
        ``progress(name)`` is a context that yields ``advance(done, total)``.
    float_output
        The folder to write the model of the float stage to, what an integer model is compared with.

    Raises
    ------
    UsageError
        If examples and settings do not go together, or there is a training of others.
    OutputError
        If an output cannot be written, or something else is there.
    """
    settings = settings or FinetuneSettings()
    target = check_writable(output, TRAINED)
    run = _Run(HfFolder.read(model), data, dev, settings, target, progress or _silent)
    if float_output is not None:
        run.will_write(float_output)
    return run.finish()


@contextmanager
def _silent(_name: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _total: None


class _Run:
    """One fine-tuning."""

    def __init__(
        self,
        folder: HfFolder,
        data: Examples,
        dev: Examples | None,
        settings: FinetuneSettings,
        target: Path,
        progress: Callable[[str], Any],
    ) -> None:
        self.folder, self.settings, self.target = folder, settings, target
        self.progress = progress
        self.float_output: Path | None = None
        if dev is None:
            order = np.random.default_rng([settings.seed, 1]).permutation(len(data)).tolist()
            data, dev = data.split(_DEV_SHARE, order)
        self.data, self.dev = data, dev
        self.work = target.with_name(f"{target.name}{_TRAINING}")
        # A training that was killed at its very end has written its float model.
        made = self.work / _FLOAT / _WEIGHTS
        self._tuned = OutputKind(
            "the float model of this training",
            lambda folder: filecmp.cmp(made, folder / _WEIGHTS, shallow=False),
            folder=True,
        )
        self.tokenizer_files = tokenizer_files(folder.model) or tokenizer_files(folder.path)
        if not self.tokenizer_files:
            raise UsageError(
                "texts cannot be tokenised",
                where=str(folder.path),
                why="the folder has no tokenizer files",
                todo="copy them there from the model that it was made from",
            )
        self.tokenizer = Tokenizer(source_tokenizer(folder.model, folder.path))
        self._check()

    def _check(self) -> None:
        self.labelled = self.data.labelled
        if self.labelled != self.dev.labelled:
            raise UsageError(
                "one of the data and the dev set has labels, the other has none",
                todo="give both with labels, or both without",
            )
        if not self.labelled and self.settings.distillation == "none":
            raise UsageError(
                "there are no labels, and nothing else to learn",
                why="without labels the float model itself is what is learned",
                todo="give --distill embeddings (or logits), or data with a column of labels",
            )
        self.head = Objective.head_of(self.data) if self.labelled else self.folder.default_head
        kind = "logits" if HEADS[self.head].is_logits else "embeddings"
        if self.settings.distillation not in ("none", kind):
            raise UsageError(
                f"{self.settings.distillation} cannot be distilled from this model",
                where=str(self.folder.path),
                why=f"with the head {self.head} it gives {kind}",
                todo=f"give --distill {kind}",
            )
        classes = self.folder.config.get("architectures") or [""]
        self.has_head = self.labelled and head_of_class(str(classes[0])) == self.head
        own = None
        if self.has_head:
            labels = model_config(self.folder).id2label
            own = [str(labels[place]) for place in sorted(labels)]
        self.names = class_names(self.data, self.dev, own)
        self.learned, self.judged = (
            Objective(part, self.names, self.tokenizer, self.settings.seq_len)
            for part in (self.data, self.dev)
        )

    # -- the whole --------------------------------------------------------------------------------

    def will_write(self, float_output: str | Path) -> None:
        """Write the model of the float stage, too; refused where that cannot be."""
        if not self.labelled:
            raise UsageError(
                "there is no float model to write",
                why="without labels nothing is tuned in float: the model itself is what is learned",
                todo="leave --float-output out",
            )
        self.float_output = check_writable(float_output, self._tuned)

    def finish(self) -> FinetuneResult:
        """Run both stages, write the outputs, and remove the folder of the training."""
        self._open()
        float_stage = None
        source = self.folder.path
        if self.labelled:
            float_stage = self._float_stage()
            source = self.work / _FLOAT
        integer_stage = self._integer_stage(source)
        if self.float_output is not None:
            with write_folder(self.float_output, self._tuned) as fresh:
                ignored = shutil.ignore_patterns(_HISTORY)
                shutil.copytree(source, fresh, ignore=ignored, dirs_exist_ok=True)
        shutil.rmtree(self.work)
        return FinetuneResult(float_stage, integer_stage, self.names, len(self.data), len(self.dev))

    def _open(self) -> None:
        """Make the folder of the training, or see that it is one of this model and these data."""
        document = {
            "settings": self.settings.to_json(),
            "model": files_sha256(self.folder.weights),
            "data": self.data.digest,
            "dev": self.dev.digest,
        }
        text = json.dumps(document, indent=1, sort_keys=True)
        file = self.work / _SETTINGS
        if self.work.exists():
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                raise UsageError(
                    f"there is another training in {self.work}",
                    why="its model, data or settings are others",
                    todo="finish it with these, choose another output, or remove the folder",
                )
            _logger.info("going on with the training in %s", self.work)
            return
        with write_folder(self.work, _BEGUN) as fresh:
            (fresh / _SETTINGS).write_text(text, encoding="utf-8")

    def _schedule(self, epochs: int, rate: float, stage: int) -> Schedule:
        seed = self.settings.seed * 2 + stage
        return Schedule(self.settings, self.learned.lengths, epochs, rate, seed)

    # -- batches ----------------------------------------------------------------------------------

    def _dev_batches(self) -> Iterator[list[int]]:
        size = self.settings.batch_size
        for start in range(0, len(self.dev), size):
            yield list(range(start, min(start + size, len(self.dev))))

    def _score(
        self, names: Sequence[str], logits_of: Callable[[dict[str, torch.Tensor]], torch.Tensor]
    ) -> float:
        """First metric of the task on the dev set, as `ibert eval --task` measures it."""

        def run(tokens: TokenizedBatch) -> list[np.ndarray]:
            arrays = tokens.inputs(names)
            given = {key: torch.from_numpy(x.astype(np.int64)) for key, x in arrays.items()}
            return [logits_of(given).float().numpy()]

        output = OutputInfo("logits", "logits", HEADS[self.head].kind)
        labels = dict(enumerate(self.names or ("score",)))
        # What a measure asks of a model; the sizes of its layers are not part of it.
        info = ModelInfo("", self.head, tuple(names), (output,), 0, 0, 0, id2label=labels)
        return self.dev.score(Side(info, self.tokenizer, self.settings.seq_len, run))

    # -- stages -----------------------------------------------------------------------------------

    def _float_stage(self) -> JsonDict:
        done = self.work / _FLOAT
        file = done / _HISTORY
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8"))
        settings = self.settings
        torch.manual_seed(settings.seed)
        model = self._with_head()
        names = input_names(model)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = settings.dropout

        def loss(indices: Sequence[int]) -> torch.Tensor:
            inputs = self.learned.inputs(indices, names)
            return model(**inputs, **self.learned.labels(indices)).loss

        def score() -> float:
            return self._score(names, lambda inputs: _logits(model(**inputs)))

        history: JsonDict = {"history": [], "best": None}
        if settings.float_epochs:
            schedule = self._schedule(settings.float_epochs, settings.float_learning_rate, 0)
            with self.progress("tuning in float") as advance:
                checkpoint = self.work / "float.pt"
                tracked = Loop(model, loss, score, schedule, checkpoint, advance).run()
            history = _history(tracked)
        with write_folder(done, _BEGUN) as fresh:
            model.eval().save_pretrained(fresh)
            for name, content in self.tokenizer_files.items():
                (fresh / name).write_bytes(content)
            (fresh / _HISTORY).write_text(json.dumps(history), encoding="utf-8")
        return history

    def _with_head(self) -> Any:
        """The model with a head for these labels: its own if it fits, otherwise a new one."""
        return build(
            self.folder,
            HEADS[self.head].auto_class,
            model_config(self.folder, **head_settings(self.names, self.head)),
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=self.has_head,
        )

    def _integer_stage(self, source: Path) -> JsonDict:
        settings = self.settings
        narrow = settings.weights == "4"
        start = self.work / _START
        if not start.exists():
            with self.progress("calibrating") as advance:
                calibration = self._calibration()
                first = prepare(
                    source,
                    settings.preset,
                    calibration,
                    seq_len=settings.seq_len,
                    progress=advance,
                    split_channels=not narrow,
                )
                if narrow:
                    begin(first, calibration, settings.seq_len)
            first.save(start)
        # From the files, whether the training goes on or begins, so that both are the same.
        model = prepare(
            start,
            learn_scales=settings.learn_scales,
            word_table_bits=int(settings.word_table_bits),
        )
        if settings.trained == "vectors":
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.requires_grad and parameter.ndim < 2)
        names = model.info.inputs
        output = model.info.outputs[0]
        teacher = None
        if settings.distillation != "none":
            teacher = float_module(HfFolder.read(source), model.info.head)

        def distance(
            result: Any, inputs: dict[str, torch.Tensor], wanted: torch.Tensor | None = None
        ) -> torch.Tensor:
            if wanted is None:
                assert teacher is not None
                with torch.no_grad():
                    wanted = teacher(**inputs)
            found = result[output.name]
            if output.kind == "span_logits":
                padded = inputs["attention_mask"][:, None] == 0
                wanted, found = (
                    x.transpose(1, 2).masked_fill(padded, _FAR_BELOW) for x in (wanted, found)
                )
            elif wanted.ndim == 3:
                kept = inputs["attention_mask"] != 0
                wanted, found = wanted[kept], found[kept]
            if settings.distillation == "logits":
                return logits_loss(found, wanted)
            return embedding_loss(found, wanted)

        original: dict[str, torch.Tensor] = {}
        if narrow and not self.labelled:
            weights = load(source, self.head).parameters
            original = {name: torch.from_numpy(np.array(x)) for name, x in weights.items()}

        def loss(indices: Sequence[int]) -> torch.Tensor:
            inputs = self.learned.inputs(indices, names)
            if original:
                with torch.no_grad():
                    wanted = model.float_values(inputs, original)
                found = model.float_values(inputs)
                hidden = hidden_distance(found, wanted, model.hidden, inputs["attention_mask"])
                result = {output.name: found[output.value]}
                return distance(result, inputs, wanted[output.value]) + hidden / 2
            labels = self.learned.labels(indices) if self.labelled else {}
            result = model(**inputs, **labels)
            total: torch.Tensor = result["loss"] if self.labelled else torch.zeros(())
            return total if teacher is None else total + distance(result, inputs)

        def score() -> float:
            if self.labelled:
                return self._score(names, lambda inputs: model(**inputs)[output.name])
            total = 0.0
            for indices in self._dev_batches():
                inputs = self.judged.inputs(indices, names)
                total -= float(distance(model(**inputs), inputs)) * len(indices)
            return total / len(self.dev)

        model.eval()
        with torch.no_grad():
            before = score()
        file = self.work / "integers.pt"
        schedule = self._schedule(settings.epochs, settings.learning_rate, 1)
        with self.progress("tuning with integers") as advance:
            scales = [*model.log_scales.values(), *model.group_scales.parameters()]
            loop = Loop(model, loss, score, schedule, file, advance, scales)
            loop.tracked.best = before  # what calibration alone gives is not made worse
            loop.best = {name: x.clone() for name, x in model.state_dict().items()}
            tracked = loop.run()
        model.eval().save(self.target)
        return {**_history(tracked), "before": before}

    def _calibration(self) -> list[Any]:
        """Some of the training texts, tokenised: pairs too."""
        count = min(self.settings.calibration, len(self.data))
        random = np.random.default_rng([self.settings.seed, 2])
        chosen = random.permutation(len(self.data))[:count].tolist()
        types = int(getattr(model_config(self.folder), "type_vocab_size", 0) or 0) > 1
        names = ("input_ids", "attention_mask", *(["token_type_ids"] if types else []))
        size = self.settings.batch_size
        parts = [chosen[start : start + size] for start in range(0, count, size)]
        return [
            {name: x.numpy() for name, x in self.learned.inputs(part, names).items()}
            for part in parts
        ]


def _logits(result: Any) -> torch.Tensor:
    """Of a model of transformers; those of starts and ends as one, [batch, seq, 2]."""
    if "logits" in result:
        return result.logits
    return torch.stack((result.start_logits, result.end_logits), dim=-1)


def _history(tracked: Tracked) -> JsonDict:
    return {"history": tracked.history, "best": tracked.best, "steps": tracked.step}
