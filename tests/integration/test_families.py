"""Models of every family from torch to the loaded library: integers, intervals, fidelity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import tirx

import ibert_tvm as ibert
from ibert_tvm.evaluation.metrics import row_cosine
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda import CUDA_RULES
from ibert_tvm.schedules.cuda.fallback import FallbackRule
from ibert_tvm.schedules.rule import kernel_name
from ibert_tvm.targets import get_target
from tests.examples import examples
from tests.frontend.rotary_modules import encoder
from tests.integration import distance_models
from tests.integration.families import EVERY, PRESETS, Case, Model
from tests.integration.token_model import MODELS as TOKENS
from tests.integration.whole_models import assert_bit_exact, build_library, reference
from tests.lowering import lowered
from tests.twins import runnable_target

pytestmark = pytest.mark.slow

# Of the families with many models some; most with one preset, in turn.
SLOW = [
    *(
        case
        for place, case in enumerate(EVERY)
        if case[0] not in ("distances", "rotations", "tokens")
        and (case[-1] not in PRESETS or case[-1] == PRESETS[place // 2 % 2])
    ),
    ("distances", "mpnet", "accurate"),
    ("distances", "window", "paper"),
    ("distances", "buckets", "accurate"),
    ("distances", "first", "paper"),
    ("rotations", "modernbert", "accurate"),
    ("rotations", "modernbert", "paper"),
    ("rotations", "qwen3", "accurate"),
    ("rotations", "jina_embeddings_v3", "accurate"),
    ("tokens", "registers", "accurate"),
    *(("tokens", name, PRESETS[place % 2]) for place, name in enumerate(TOKENS)),
]


def shapes_of(model: Model, case: Case) -> list[tuple[int, int]]:
    """Shapes to compile, with lengths that no tile divides."""
    if case[0] == "distances":
        return distance_models.SHAPES[case[1]]
    # Longer than ModernBERT's window of 8 to both sides.
    return [(1, 13), (3, 40)] if case[0] == "rotations" else [(2, model.length(13))]


@pytest.mark.slow_cases(4)
@pytest.mark.parametrize(
    "case", examples(EVERY, *dict.fromkeys(SLOW), otherwise="record"), ids="-".join
)
def test_the_library_is_bit_exact(case: Case, tmp_path: Path) -> None:
    model = Model(*case)
    shapes = shapes_of(model, case)
    library = build_library(model.quantised, shapes, tmp_path)
    for batch, length in shapes:
        for tokens in (length, 5, 1):
            arrays = model.inputs(batch, length, tokens, min(tokens, length))
            assert_bit_exact(library, model.quantised, arrays)


@pytest.mark.parametrize(
    "case", [case for case in EVERY if case[0] not in ("distances", "rotations")], ids="-".join
)
def test_no_intermediate_leaves_its_interval(case: Case) -> None:
    model = Model(*case)
    module, parameters = model.quantised.module, model.quantised.parameters
    report = analyse_ranges(module, parameters, max_seq_len=model.length(24))
    arrays = {k: v.astype("int64") for k, v in model.inputs(2, 9, 3, 4).items()}
    assert check_unbounded(module, arrays, parameters, report.details) == []


@pytest.mark.parametrize(
    "case",
    examples(
        [case[:2] for case in EVERY if case[0] in ("distances", "rotations") and "paper" in case],
        *(("distances", kind) for kind in distance_models.KINDS),
        *(("rotations", name) for name in ("modernbert", "nomic_bert", "roformer")),
        otherwise="record",
    ),
    ids="-".join,
)
def test_integers_follow_the_float_model(case: Case) -> None:
    family, name = case
    model = Model(family, name, "accurate")
    canonical = distance_models.source(name) if family == "distances" else ibert.load(encoder(name))
    arrays = model.inputs(3, 40, 9, 40)
    arrays["attention_mask"][2, 30:] = 0
    floats = FloatModel(canonical.module, canonical.parameters).run(arrays).outputs[0]
    (integers,) = reference(model.quantised, arrays)
    tokens = np.asarray(arrays["attention_mask"]) != 0
    assert row_cosine(floats[tokens], integers[tokens]).mean() > 0.99


X86 = [
    (target, *case)
    for target in ("x86-64", "x86-64-v3", "x86-avx512-vnni")
    for case in EVERY
    if case[0] in ("row scales", "wide operands")
]


@pytest.mark.parametrize(
    "case",
    examples(X86, *(x for x in X86 if x[2] == "bert" or x[0] == "x86-64-v3"), otherwise="record"),
    ids="-".join,
)
def test_every_form_of_x86_is_bit_exact(case: tuple[str, ...], tmp_path: Path) -> None:
    target, model = case[0], Model(*case[1:])
    runnable_target(target)
    compiled = ibert.compile(model.quantised, target=target, shapes=[(2, 13)])
    library = ibert.load_library(compiled.export(tmp_path / "model.so"), num_threads=1)
    for tokens in (13, 5, 1):
        assert_bit_exact(library, model.quantised, model.inputs(2, 13, tokens, tokens))


@pytest.mark.parametrize(
    "case",
    [("gates", "silu", "accurate"), ("groups", "rms", "accurate"), ("groups", "own", "accurate")],
    ids="-".join,
)
def test_no_kernel_of_a_gpu_needs_a_grid_per_stage(case: Case) -> None:
    rules = [rule for rule in CUDA_RULES if not isinstance(rule, FallbackRule)]
    module = lowered(Model(*case).quantised, "t4", [(2, 13)]).program.module
    written = [
        schedule_kernel(var.name_hint, func, get_target("t4"), rules)
        for var, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc) and kernel_name(func)
    ]
    assert len(written) >= 8
