"""The checks that are the same for every artefact: intervals, and equality with the reference."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..common.errors import DeviceError, IbertError, UsageError, VerificationError
from ..common.strict_json import JsonObject
from ..common.types import Array
from ..evaluation.evaluate import evaluate_integers
from ..model.artefact import QuantizedModel
from ..model.model_info import ModelInfo
from ..model.shapes import check_shapes
from .certificate import MOST_FINDINGS, Check

# Inputs on which a program is compared with its reference.

_MOST_SHAPES = 64
_MOST_TOKENS = 16_384
_MOST_TOKENS_IN_ALL = 65_536

Inputs = dict[str, Array]


class Batch(NamedTuple):
    """Inputs of one call."""

    rows: int
    tokens: int
    inputs: Inputs


def check_amount(shapes: list[tuple[int, int]], model: QuantizedModel) -> None:
    """Refuse shapes that a model is not compiled for, or that take too long to verify.

    Parameters
    ----------
    shapes
        Rows and tokens, as an artefact lists them.
    model
        What it is said to be made of.

    Raises
    ------
    VerificationError
        If the model does not take one of them, or they are more than one process should compile
        again and run.
    """
    tokens = [rows * length for rows, length in shapes]
    if len(shapes) > _MOST_SHAPES:
        why = f"it lists {len(shapes)} shapes; at most {_MOST_SHAPES} are verified"
    elif max(tokens, default=0) > _MOST_TOKENS:
        why = f"it lists a shape of {max(tokens)} tokens; at most {_MOST_TOKENS} are verified"
    elif sum(tokens) > _MOST_TOKENS_IN_ALL:
        why = f"its shapes have {sum(tokens)} tokens; at most {_MOST_TOKENS_IN_ALL} are verified"
    else:
        try:
            check_shapes(shapes, model)
            return
        except UsageError as error:
            why = f"the model does not take a shape that it lists: {error.what}: {error.why}"
    raise VerificationError(
        "the shapes of the artefact are not verified",
        why=why,
        todo="compile the model for fewer or smaller shapes; do not use the artefact if it is not "
        "your own",
    )


def random_batches(
    info: ModelInfo, shapes: list[tuple[int, int]], count: int, seed: int
) -> Iterator[Batch]:
    """Make inputs of each shape in turn: any ids, padding behind any number of tokens.

    Parameters
    ----------
    info
        The model.
    shapes
        Rows and tokens.
    count
        How many; every shape is met once at least.
    seed
        Of the random numbers.

    Yields
    ------
    Batch
    """
    random = np.random.default_rng(seed)
    for index in range(max(count, len(shapes))):
        batch, length = shapes[index % len(shapes)]
        if info.image_size is not None:
            values = random.normal(size=(batch, *info.image_size)).astype(np.float32)
            yield Batch(batch, length, {info.inputs[0]: values})
            continue
        lengths = random.integers(1, length + 1, batch)
        mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
        ids = random.integers(0, info.vocab_size, (batch, length), dtype=np.int32)
        types = random.integers(0, max(info.type_vocab_size, 1), (batch, length), dtype=np.int32)
        made = {
            "input_ids": np.where(mask, ids, np.int32(info.pad_token_id)),
            "attention_mask": mask,
            "token_type_ids": types,
        }
        yield Batch(batch, length, {name: made[name] for name in info.inputs})


# Products of Python's integers take a minute for more.
_UNBOUNDED_ENTRIES = 200_000
_UNBOUNDED_BATCHES = 2

Run = Callable[[Inputs], Mapping[str, Array]]
Advance = Callable[[int, int], None]


def one_line(error: IbertError) -> str:
    """An error as a finding."""
    return ": ".join(filter(None, (error.what, error.where, error.why)))


def check_intervals(model: QuantizedModel, batches: list[Batch]) -> Check:
    """Prove the width of every intermediate, and look whether one leaves its interval.

    Parameters
    ----------
    model
        With its integer constants.
    batches
        The two smallest are evaluated without bounds, or in 64 bits where that would take minutes.
    """
    from ..relay_passes.errors import CompilerError
    from ..relay_passes.integer.ranges import analyse_ranges
    from ..relay_passes.integer.unbounded import check_unbounded

    try:
        report = analyse_ranges(model.program, model.parameters)
    except CompilerError as error:
        return Check("intervals", {}, (one_line(error),))
    small = sum(array.size for array in model.parameters.values()) <= _UNBOUNDED_ENTRIES
    kind: Any = object if small else np.int64
    found: list[str] = []
    smallest = sorted(batches, key=lambda batch: batch.rows * batch.tokens)
    given = [batch.inputs for batch in smallest if {*batch.inputs} == {*model.program.inputs}]
    if model.info.image_size is None:
        for inputs in given[:_UNBOUNDED_BATCHES]:
            typed = {
                name: inputs[name].astype(type_.dtype)
                for name, type_ in model.program.inputs.items()
            }
            found += check_unbounded(model.program, typed, model.parameters, report.details, kind)
    facts = {
        "longest_sequence": report.max_seq_len,
        "values": len(report.details),
        "intermediates": sum(len(value.stages) for value in report.details.values()),
        "widest_bits": max(value.width for value in report.details.values()),
        "numbers": "without bounds" if small else "64 bits",
        "bits": {
            name: {
                "low": value.low,
                "high": value.high,
                "type": value.dtype,
                "headroom": value.headroom,
                "width": value.width,
                "stages": {stage: list(bounds) for stage, bounds in value.stages.items()},
            }
            for name, value in report.details.items()
        },
    }
    return Check("intervals", facts, tuple(found[:MOST_FINDINGS]))


def check_same_bits(
    model: QuantizedModel, batches: list[Batch], run: Run, facts: JsonObject, advance: Advance
) -> Check:
    """Compare code with the reference.

    Parameters
    ----------
    model
        The reference.
    batches
        Inputs.
    run : callable
        Runs the code on inputs, and gives integers by name of the output. That a device refuses it
        or fails is a finding.
    facts : mapping
        Where it runs.
    advance : callable
        Called with how many inputs are done, and how many there are.

    Returns
    -------
    Check
        Its ``outputs_sha256`` is that of the reference's outputs, so it is the same for every
        target that passes.
    """
    digest = hashlib.sha256()
    findings: list[str] = []
    for index, (rows, tokens, given) in enumerate(batches):
        expected = evaluate_integers(model, given)
        try:
            outputs = run(given)
        except DeviceError as error:
            findings.append(f"it does not run: {one_line(error)}")
            break
        if set(outputs) != set(expected):
            findings.append(f"it gives {', '.join(outputs)}; the model {', '.join(expected)}")
            break
        for name, want in expected.items():
            digest.update(np.ascontiguousarray(want).tobytes())
            have = outputs[name]
            if have.shape != want.shape or have.dtype != want.dtype:
                findings.append(
                    f"{name} is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
                )
            elif wrong := int((have != want).sum()):
                findings.append(
                    f"input {index}, batch {rows}, {tokens} tokens: {wrong} of {want.size} "
                    f"integers of {name} differ"
                )
        advance(index + 1, len(batches))
    shapes = sorted({f"{rows}x{tokens}" for rows, tokens, _ in batches})
    facts = {
        **facts,
        "inputs": len(batches),
        "shapes": shapes,
        "outputs_sha256": digest.hexdigest(),
    }
    return Check("same bits", facts, tuple(findings[:MOST_FINDINGS]))


def check_tokenizer(
    info: ModelInfo, read: Callable[[], Mapping[str, bytes] | None], model: QuantizedModel
) -> list[Check]:
    """Tokenise packaged texts, and compare with what was recorded when the model was quantised.

    Parameters
    ----------
    info
        Of the artefact.
    read : callable
        Returns its tokenizer files; None of a package, which has none.
    model
        What the artefact was compiled from, or itself.

    Returns
    -------
    list of Check
        One, or none where neither has a tokenizer.
    """
    from ..model.tokenizer_behaviour import VERSION

    recorded = info.tokenizer_behaviour
    try:
        files = read()
        if not (files or model.tokenizer or recorded):
            return []
        found = _tokenizer_findings(recorded, files, model.tokenizer)
    except IbertError as error:
        found = [one_line(error)]
    why = ""
    if not recorded:
        why = "an earlier version made the artefact: it has no digest of what its tokenizer does"
    elif recorded.get("version") != VERSION:
        why = f"the digest is of other texts than this version's, which have the number {VERSION}"
    facts = {key: value for key, value in recorded.items() if key != "parts"}
    return [Check("tokenizer", facts, tuple(found[:MOST_FINDINGS]), why)]


def _tokenizer_findings(
    recorded: Mapping[str, str], files: Mapping[str, bytes] | None, of_model: Mapping[str, bytes]
) -> list[str]:
    from ..model.tokenization import Tokenizer
    from ..model.tokenizer_behaviour import VERSION, changes, differences

    if not of_model:
        return ["the model that it was compiled from has no tokenizer"]
    if files is not None and not files:
        return ["it has no tokenizer, and the model that it was compiled from has one"]
    model = Tokenizer(of_model)
    own = model if files is None else Tokenizer(files)
    if files is not None and {**files} != {**of_model}:
        other = "its tokenizer files are not those of the model, and do the same with every probe"
        return differences(own, model) or [other]
    return changes(own, recorded) if recorded.get("version") == VERSION else []
