"""Compiling random programs, running them, and comparing every integer with the reference."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.program import Program
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.runtime import load_library
from ibert_tvm.targets import get_target
from ibert_tvm.targets.emulation import runs_here

from .generator import LONGEST, VOCABULARY, pruned, random_program

Arrays = Mapping[str, np.ndarray]
SHAPES = ((1, 4), (2, 7), (3, 5), (1, 16), (2, 24))
# (target, runtime, whether it is emulated)
TARGETS = {
    "x86-64": ("none", False),
    "x86-64-v3": ("none", False),
    "x86-avx512-vnni": ("none", False),
    "host": ("tvm", False),
    "rpi4": ("none", True),
    "aarch64-dotprod": ("none", True),
    "armv7-neon": ("none", True),
    "armv6-softfloat": ("none", True),
    "rv64gc": ("none", True),
    "rv64gcv": ("none", True),
}


@dataclass
class Failure:
    """What went wrong, as small as it was made.

    Attributes
    ----------
    seed, chains, target
        Of the program.
    output
        The first value that differs; empty where it does not compile.
    steps
        The operators that make it.
    why
        What was seen.
    """

    seed: int
    chains: int
    target: str
    output: str
    steps: list[str] = field(default_factory=list)
    why: str = ""


def as_model(program: Program, parameters: Arrays) -> QuantizedModel:
    """A model whose outputs have a scale of 1."""
    types = {step.name: step.type for step in program.steps}
    outputs = tuple(
        OutputInfo(
            f"o{number}", f"o{number}", "pooled" if len(types[name].shape) == 2 else "hidden_state"
        )
        for number, name in enumerate(program.outputs)
    )
    info = ModelInfo(
        architecture="test",
        head="none",
        inputs=tuple(program.inputs),
        outputs=outputs,
        hidden_size=1,
        num_layers=1,
        vocab_size=VOCABULARY,
    )
    scales = [{"name": output.name, "scale": 1.0} for output in outputs]
    return QuantizedModel(program, dict(parameters), info, {"outputs": scales})


def inputs_of(shape: tuple[int, int], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Any ids; whole rows, padded rows and, behind the first, rows of padding alone."""
    rows, tokens = shape
    lengths = random.integers(0, tokens + 1, rows)
    lengths[0] = random.integers(1, tokens + 1)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int32)
    ids = random.integers(0, VOCABULARY, shape).astype(np.int32)
    return {"input_ids": ids, "attention_mask": mask}


def check_intervals(program: Program, parameters: Arrays, given: Arrays) -> list[str]:
    """What leaves its interval in integers without bounds."""
    report = analyse_ranges(program, parameters, max_seq_len=LONGEST)
    return check_unbounded(program, given, parameters, report.details)


def check_corners(program: Program, parameters: Arrays, seed: int) -> list[str]:
    """What leaves its interval where operands are at the ends of theirs, which no input may give.

    The analysis claims its intervals of whatever lies in those of the operands, so every step is
    evaluated alone.
    """
    report = analyse_ranges(program, parameters, max_seq_len=LONGEST)
    random = np.random.default_rng(seed)
    symbols = {"batch": 2, "seq_len": LONGEST}
    given = inputs_of((2, LONGEST), random)
    left: list[str] = []
    for step in program.steps:
        for ends in ((1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1)):
            values = {**parameters, **given}
            for made in program.steps:
                proven = report.details[made.name]
                choices = [proven.low, proven.high, min(max(proven.low, 0), proven.high)]
                shape = [
                    d if isinstance(d, int) else symbols[d.symbol] + d.plus for d in made.type.shape
                ]
                kept = [choice for choice, used in zip(choices, ends, strict=True) if used]
                values[made.name] = random.choice(kept, shape).astype(made.type.dtype)
            inputs = {**program.inputs, **{made.name: made.type for made in program.steps}}
            alone = Program(inputs, program.parameters, (step,), (step.name,))
            left += check_unbounded(alone, values, parameters, report.details)
    return left


def runs(target: str) -> bool:
    """Whether this machine runs what is compiled for a target, or emulates it."""
    return TARGETS[target][1] or runs_here(get_target(target))


def export(
    program: Program, parameters: Arrays, target: str, shape: tuple[int, int], path: Path
) -> None:
    """Compile a program to a library."""
    model = as_model(program, parameters)
    ibert.compile(model, target, [shape], runtime=TARGETS[target][0]).export(path)


def refusal(seed: int, chains: int, target: str) -> str:
    """Why the programs of a seed do not compile for a target, which may be none of this machine."""
    program, parameters = random_program(seed, chains)
    with tempfile.TemporaryDirectory(prefix="ibert-program-") as folder:
        try:
            export(program, parameters, target, SHAPES[seed % len(SHAPES)], Path(folder) / "p.so")
        except Exception as error:
            return f"{type(error).__name__}: {_what(error)}"
    return ""


def compare(
    program: Program, parameters: Arrays, target: str, shape: tuple[int, int], seed: int
) -> str:
    """Compile a program and run it.

    Returns
    -------
    str
        Name of the first output that differs; empty if none does.
    """
    given = inputs_of(shape, np.random.default_rng(seed))
    wanted = evaluate(program, given, parameters)
    with tempfile.TemporaryDirectory(prefix="ibert-program-") as folder:
        path = Path(folder) / "program.so"
        export(program, parameters, target, shape, path)
        outputs = load_library(path, emulate=TARGETS[target][1]).run(**given, dequantize=False)
    for number, (name, want) in enumerate(zip(program.outputs, wanted, strict=True)):
        if not np.array_equal(outputs[f"o{number}"].values, want):
            return name
    return ""


def check(seed: int, chains: int, target: str) -> list[Failure]:
    """Check the programs of a seed on a target: intervals, and then bits."""
    program, parameters = random_program(seed, chains)
    shape = SHAPES[seed % len(SHAPES)]
    given = inputs_of(shape, np.random.default_rng(seed))
    try:
        left = check_intervals(program, parameters, given)
    except Exception as error:
        left = [f"the reference: {type(error).__name__}: {_what(error)}"]
    failures = [Failure(seed, chains, target, line.split(":")[0], [], line) for line in left]
    try:
        output = compare(program, parameters, target, shape, seed)
    except Exception as error:
        return failures + _shrunk(program, parameters, target, shape, seed, chains, error)
    if output:
        failures += _shrunk(program, parameters, target, shape, seed, chains, None)
    return failures


def _shrunk(
    program: Program,
    parameters: Arrays,
    target: str,
    shape: tuple[int, int],
    seed: int,
    chains: int,
    error: Exception | None,
) -> list[Failure]:
    """Try every output alone; report those that fail, each with the steps that it is made of."""
    failures = []
    for output in program.outputs:
        one, arrays = pruned(program, parameters, (output,))
        try:
            why = compare(one, arrays, target, shape, seed) and "integers differ"
        except Exception as alone:
            why = f"{type(alone).__name__}: {_what(alone)}"
        if why:
            steps = [step.operator.OP for step in one.steps]
            failures.append(Failure(seed, chains, target, output, steps, why))
    if not failures:
        why = "only all outputs together fail" + (f": {_what(error)}" if error else "")
        failures.append(Failure(seed, chains, target, "", [], why))
    return failures


def _what(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return "; ".join(line.strip() for line in (lines[:3] if len(lines) < 9 else lines[-3:]))
