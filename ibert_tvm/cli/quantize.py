"""`ibert quantize`: a float model and texts to a quantised model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ibert_tvm.relay_passes.spec.preset_names import PRESET_NAMES

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..quantization.fidelity import FIDELITIES
from ..quantization.options import OBSERVERS
from ..texts import data_file, packaged_texts, read_texts
from .eval import TaskOptions
from .options import HeadOptions, MaybeOne, parse_pairs, parse_size
from .result import CommandResult
from .signature import Choice
from .tables import Table

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel
    from ..quantization.batches import Batch
    from ..quantization.narrow_weights import Mix
    from ..quantization.scale_source import ScaleSource
    from ..quantization.search import Found, Measure


@dataclass(frozen=True)
class SearchOptions:
    """What `ibert quantize` searches for.

    Attributes
    ----------
    max_drop
        Search for the cheapest way of quantising that loses no more than this; nothing is written
        (exit code 5) if there is none.
    metric
        What --max-drop counts: 1 - mean cosine of the outputs to the float model's; or points of
        --task, by the metric that falls most.
    target
        What --max-drop predicts the cost for: `ibert targets` lists them. What is written runs on
        all.
    heldout
        Texts on which --max-drop is measured; by default every fifth of the calibration texts,
        which then does not take part in calibration. With --vocabulary, texts of which is told how
        many change; by default packaged English ones.
    """

    panel = "With --max-drop or --vocabulary"

    max_drop: Annotated[float | None, Option(rich_help_panel="Options")] = None
    metric: Literal["cosine", "task"] = "cosine"
    target: str = "host"
    heldout: Path | None = None


@dataclass(frozen=True)
class SizeOptions:
    """How large the model may be.

    Attributes
    ----------
    vocabulary
        Keep fewer words: those of a file of texts, or the N most frequent ones of the calibration
        texts and, where these have fewer, of the tokenizer's own order. Texts of kept words have
        the same integers as before; of others the words fall into smaller pieces.
    word_table_bits
        Bits of the table of words: 8, or 4 with a scale for every 32 entries, which takes a fourth
        off MiniLM. [default: 8]
    weights
        Bits of the matrices of linear layers: 8, or 4 with a scale for every 32 entries of a row;
        or mixed, as few of 4 bits as --max-bytes asks for, or as many as --max-drop allows, those
        that cost least first. Rounded on the calibration texts. [default: 8]
    max_bytes
        Most bytes of all integers: the table of words gets 4 bits where 8 do not fit, and then
        matrices, with --weights mixed. Nothing is written (exit code 5) if that does not fit
        either.
    """

    panel = "Size"

    vocabulary: Annotated[str | None, Option(metavar="TEXTS|N")] = None
    word_table_bits: Annotated[str | None, Choice(("8", "4"))] = None
    weights: Annotated[str | None, Choice(("8", "4", "mixed"))] = None
    max_bytes: MaybeOne = None

    def check(self, max_drop: float | None) -> int | list[str] | None:
        """Read --vocabulary: a number of pieces, or the texts of a file."""
        if self.weights == "mixed" and (self.max_bytes is None) == (max_drop is None):
            raise UsageError(
                "--weights mixed with neither --max-bytes nor --max-drop, or with both",
                why="one of them says how many matrices get 4 bits",
                todo="give one of them, or --weights 4",
            )
        if self.max_bytes is not None and self.word_table_bits is not None:
            raise UsageError(
                "--max-bytes together with --word-table-bits",
                why="the first chooses the second",
                todo="leave one of them out",
            )
        text = self.vocabulary
        if text is None or (text.isascii() and text.isdigit()):
            return None if text is None else int(text)
        return read_texts("--vocabulary", Path(text))

    def of(
        self,
        model: QuantizedModel,
        words: int | list[str] | None,
        calibration: Any,
        held: list[str] | None,
        seq_len: int,
        within: tuple[float, Measure] | None,
    ) -> QuantizedModel:
        """The model in the size that was asked for.

        Parameters
        ----------
        model
            Of 8 bits.
        words
            As of `check`.
        calibration, held
            What it was calibrated on, and texts that it was not.
        seq_len
            Texts are truncated to this many tokens.
        within
            What --max-drop allows, and what measures it.
        """
        from ..quantization.narrow_weights import Mix, samples, with_narrow_weights
        from ..quantization.vocabulary import cut_vocabulary
        from ..quantization.word_table import with_word_bits, within_bytes

        def cut(model: QuantizedModel) -> QuantizedModel:
            if words is None:
                return model
            count = words if isinstance(words, int) else None
            given = calibration or () if isinstance(words, int) else words
            texts = [text for text in given if not isinstance(text, Mapping)]
            return cut_vocabulary(model, texts, count, held or packaged_texts("heldout.txt"))

        def sampled(model: QuantizedModel) -> list[Batch]:
            return samples(model, calibration or packaged_texts("calibration.txt"), seq_len)

        def mixed(model: QuantizedModel) -> Mix:
            return Mix.of(model, sampled(model))

        model = cut(model)
        if self.weights == "4":
            model = with_narrow_weights(model, sampled(model))
        if self.max_bytes is not None:
            mix = mixed if self.weights == "mixed" else None
            return within_bytes(model, self.max_bytes, mix)
        model = with_word_bits(model, int(self.word_table_bits or 8))
        return (
            model
            if self.weights != "mixed" or within is None
            else mixed(model).within_drop(*within)
        )


def command(
    model: Path,
    *,
    output: Path,
    calibration: Path | None = None,
    calibration_columns: Annotated[str | None, Option(metavar="text=A,pair=B")] = None,
    tokenizer: Path | None = None,
    preset: Annotated[str | None, Choice(PRESET_NAMES)] = None,
    fidelity: Annotated[str | None, Choice(FIDELITIES)] = None,
    observer: Annotated[str | None, Choice(OBSERVERS)] = None,
    seq_len: str | None = None,
    source: HeadOptions,
    widen: bool = False,
    limit: MaybeOne = None,
    size: SizeOptions,
    search: SearchOptions,
    task: TaskOptions,
    verbose: bool = False,
) -> CommandResult:
    """Import a model, choose scales by running texts through it, and lower it to integers.

    Parameters
    ----------
    model
        A Hugging Face folder, an ONNX file, or an exported torch program (.pt2).
    output
        The folder to write, NAME.ibert.
    calibration
        Texts like those of later use, one per line, or token arrays by input name (.npz); by
        default English texts of many kinds, and none for a model that came with its scales.
    fidelity
        How close to come to the float model, preset accurate: fast has 2.5 times the error, is
        smaller by 1 to 2%, and up to 6% faster with short texts; quick has 1.5 times the error, and
        is quantised in half of the time; best has a third of the error, which costs next to
        nothing where the target multiplies 16 bits (AVX2, Cortex-M0 to -M7), and nearly twice the
        time where it multiplies bytes. [default: default]
    seq_len
        Truncate the calibration texts to this many tokens. [default: 128, or all positions of the
        model where these are fewer]

    Other Parameters
    ----------------
    calibration_columns
        The calibration file is a table (.csv, or tabs): columns of its texts, by name or, where it
        has no names, from 1; with a pair for a model of pairs.
    tokenizer
        Folder of the tokenizer files; by default the model's.
    preset
        accurate; the formulas and constants of the paper; or the arithmetic of the code that was
        released with it, for I-BERT checkpoints. [default: accurate; released for a checkpoint that
        was trained with quantisation]
    observer
        How the ranges of activations are chosen. [default: as the fidelity says]
    widen
        Of a quantised model: keep sums, LayerNorm and GELU's input in 16 bits over the range that
        the file gives them, instead of rounding them to its 8 bits.
    limit
        Use only the first texts.

    Examples
    --------
    ibert quantize MODEL -o minilm.ibert --calibration texts.txt
    ibert quantize model.onnx -o minilm.ibert --max-drop 0.002
    """
    from ..common.files import check_writable
    from ..model.artefact import ARTEFACT
    from ..progress import progress

    words = size.check(search.max_drop)
    wanted = None if seq_len is None else parse_size("--seq-len", seq_len)
    other = preset not in (None, "accurate")
    given = {"--fidelity": fidelity, "--observer": observer, "--preset": other, "--widen": widen}
    chosen = [option for option, value in given.items() if value]
    _check_search(search, task, words is not None, chosen)
    samples = None if task.task is None else task.read()
    held = None if search.heldout is None else read_texts("--heldout", search.heldout)
    named = _calibration_columns(calibration, calibration_columns)
    batches = None if calibration is None else _read(calibration, limit, named)
    check_writable(output, ARTEFACT)

    started = time.perf_counter()
    with progress({"importing the model": 1, "calibrating": 4}) as line:
        imported = source.load(model, source.chosen_head, tokenizer)
        # Imported later, since loading begins with what another process does meanwhile.
        from ..quantization import quantize
        from ..quantization.batches import spread
        from ..quantization.scale_source import scale_source
        from ..quantization.search import search as search_recipes

        length = imported.info.length(wanted)
        scales = scale_source(imported, preset, batches is not None)
        if batches is None and scales.needs_data:
            batches = _read(data_file("calibration.txt"), limit)
        line.step("calibrating")
        found: Found | None = None
        within: tuple[float, Measure] | None = None
        if search.max_drop is not None:
            batches, measure = _to_measure(imported, scales, batches, held, samples, length)
            found = search_recipes(
                imported,
                batches,
                search.max_drop,
                measure,
                seq_len=length,
                target=search.target,
                begin=lambda recipe: line.say(f"trying: {recipe}"),
            )
            quantized = found.model
            within = search.max_drop, measure
        else:
            quantized = quantize(
                imported,
                calibration=batches,
                preset=preset,
                seq_len=length,
                fidelity=fidelity,
                observer=observer,
                widen=widen,
                progress=line.advance,
            )
        quantized = size.of(quantized, words, batches, held, length, within)
    quantized.save(output)
    how = quantized.quantization["calibration"]
    used = batches and spread(batches, how.get("options", {}).get("most_texts"))
    document: JsonDict = {
        "output": str(output),
        "preset": quantized.preset,
        "fidelity": how.get("fidelity"),
        "observer": how.get("options", {}).get("observer"),
        "head": quantized.info.head,
        "architecture": quantized.info.architecture,
        "calibration_texts": _sequences(used),
        "calibration_sequences": how.get("sequences", 0),
        "notes": list(quantized.info.notes),
        "seq_len": length,
        "weight_bytes": quantized.num_bytes,
        "bytes_by_operator": quantized.bytes_by_operator,
        "word_table_bits": quantized.quantization.get("word_table_bits", 8),
        "narrow_weights": quantized.quantization.get("narrow_weights", 0),
        "seconds": round(time.perf_counter() - started, 3),
    }

    if found is not None:
        document["search"] = {
            "metric": search.metric,
            "task": task.task,
            "max_drop": search.max_drop,
            "target": search.target,
            "recipe": found.recipe,
            "trials": found.to_json(),
        }
    cut = quantized.quantization.get("vocabulary")
    if cut is not None:
        document["vocabulary"] = cut
    source_scales = quantized.quantization.get("source_scales")
    if source_scales is not None:
        document["source_scales"] = source_scales

    info = quantized.info
    shown: list[str | Table] = [
        f"wrote {output}: {info.architecture}, {info.num_layers} layers, head {info.head}, "
        f"{quantized.num_bytes / 1e6:.1f} MB of integers, preset {quantized.preset}, "
        f"{_calibrated_on(document)}, in {document['seconds']:.1f} s",
        *(f"note: {note}" for note in info.notes),
    ]
    if found is not None:
        shown.append(_table_of(found))
    if cut is not None:
        shown.append(_cut_line(cut))
    if document["word_table_bits"] != 8:
        shown.append(f"table of words: {document['word_table_bits']} bits")
    if size.weights is not None or size.max_bytes is not None:
        parts = (f"{name} {n / 1e6:.2f} MB" for name, n in quantized.bytes_by_operator.items())
        shown.append(f"integers by the operator that reads them: {', '.join(parts)}")
    if source_scales is not None:
        from ..quantization.source_scales import artefact_lines

        shown.append(Table((), artefact_lines(source_scales, verbose)))
    return CommandResult(document, shown)


def _check_search(
    search: SearchOptions, task: TaskOptions, words: bool, chosen: Sequence[str]
) -> None:
    """Refuse options that say what a search is to find out, or that need one."""
    from ..targets import get_target

    get_target(search.target)
    if search.max_drop is None and search.target != "host":
        raise UsageError(
            "--target without --max-drop",
            why="an integer model runs on all targets; only what a search predicts to cost "
            "depends on one",
            todo="leave it out, and name the target to `ibert compile`",
        )
    if search.max_drop is None and search.heldout is not None and not words:
        raise UsageError(
            "--heldout without --max-drop or --vocabulary",
            why="these texts are for measuring what a search accepts, or what fewer words change",
            todo="give one of them, or measure afterwards: ibert eval --texts",
        )
    if search.max_drop is not None and chosen:
        raise UsageError(
            f"--max-drop together with {chosen[0]}",
            why="the search chooses that itself, among ways of the preset accurate",
            todo="leave one of them out",
        )
    if task.task is None and search.metric == "task":
        raise UsageError("--metric task without --task", todo="give --task NAME and --data FILE")
    if task.task is not None and (search.metric != "task" or search.max_drop is None):
        raise UsageError(
            "--task without --max-drop and --metric task",
            why="a task is what a drop is measured on",
            todo="give both, or measure afterwards: ibert eval --task",
        )
    if task.task is not None and search.heldout is not None:
        raise UsageError(
            "--heldout together with --task",
            why="a drop is measured on one of them",
            todo="leave one of them out",
        )


def _to_measure(
    source: CanonicalModel, scales: ScaleSource, data: Any, held: Any, samples: Any, length: int
) -> tuple[Any, Measure]:
    """What to calibrate on, and what tells the drop: of a task, or of texts that are held back."""
    from ..quantization.search import cosine_drop, hold_back

    if scales.fixed:
        raise UsageError(
            "--max-drop for a model that came with its scales",
            why="there is nothing to choose",
            todo="quantise it without, and measure it: ibert eval",
        )
    if samples is not None:
        from ..tasks import task_drop

        task, labelled, options = samples
        return data, task_drop(task, labelled, options, source)
    if held is None:
        if isinstance(data[0], Mapping):
            raise UsageError(
                "--max-drop with token arrays, and no texts to measure on",
                where="--calibration",
                why="arrays are not held back",
                todo="give texts: --heldout FILE",
            )
        data, held = hold_back(data)
    return data, cosine_drop(source, held, length)


def _table_of(found: Found) -> Table:
    """What was tried."""
    least = found.trials[0].work
    rows = [
        [t.recipe, f"{t.work / least:.3f}", f"{t.drop:.5f}", "holds" if t.holds else "too much"]
        for t in found.trials
    ]
    return Table(("tried", "predicted cost", "drop", ""), rows)


def _cut_line(cut: JsonDict) -> str:
    parts = (
        f"{what} {cut[f'{key}_before'] / 1e6:.2f} MB to {cut[key] / 1e6:.2f}"
        for what, key in (("integers", "weight_bytes"), ("tokenizer", "tokenizer_bytes"))
    )
    held = cut["heldout_texts"]
    return (
        f"vocabulary: {cut['pieces']} of {cut['pieces_before']} pieces; {', '.join(parts)}; of "
        f"{held} held-out texts {cut['changed_texts']} ({cut['changed_texts'] / held:.1%}) have "
        f"other pieces than before, and {cut['unknown_texts']} more unknown words"
    )


def _calibration_columns(file: Path | None, text: str | None) -> dict[str, str]:
    """Columns of a table of calibration texts; none of a file of lines."""
    if text is None:
        return {}
    if file is None or file.suffix == ".npz":
        raise UsageError(
            "--calibration-columns without a table",
            why="it names columns of the calibration texts",
            todo="give --calibration FILE, a .csv or a file with tabs",
        )
    columns = parse_pairs("--calibration-columns", text)
    if "text" not in columns or set(columns) - {"text", "pair"}:
        raise UsageError(
            f"--calibration-columns names {', '.join(map(repr, columns))}",
            why="calibration takes a text, or a text and its pair",
            todo="give text=A, or text=A,pair=B",
        )
    return {name: columns[name] for name in ("text", "pair") if name in columns}


def _read(file: Path, limit: int | None, columns: Mapping[str, str] | None = None) -> Any:
    """Read calibration data: batches of token arrays, or texts, or columns of a table of texts."""
    if columns:
        from ..tasks.tables import TableFormat, read_table

        rows = read_table(file, columns, TableFormat.of(file), "name its columns").fields[:limit]
        return [row[0] if len(row) == 1 else row for row in rows]
    if file.suffix == ".npz":
        from ..quantization.batch_file import read_batches

        return read_batches(file, limit)
    return read_texts("--calibration", file, limit)


def _calibrated_on(document: JsonDict) -> str:
    """Texts that were given, and sequences that the model ran, pieces of texts among them."""
    texts, sequences = document["calibration_texts"], document["calibration_sequences"]
    given = f"{texts} calibration texts"
    return given if sequences in (0, texts) else f"{given} ({sequences} sequences, with pieces)"


def _sequences(data: Any) -> int:
    if data is None:
        return 0
    return sum(len(item[next(iter(item))]) if isinstance(item, Mapping) else 1 for item in data)
