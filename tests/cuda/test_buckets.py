"""Graphs for fewer tokens: how many blocks they launch, when they are made, and their bits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ibert_tvm.common.errors import DeviceError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.runtime import Library
from ibert_tvm.runtime.cuda_graphs import GraphEditor
from ibert_tvm.targets.cuda.buckets import blocks_in_use, token_buckets, tokens_in_use
from tests.arm.tools import needs
from tests.cuda.gpu_models import as_model, build
from tests.cuda.stand_in_gpu import load
from tests.passes.models import ENCODERS, VOCABULARY, encoder_program
from tests.passes.small import small_program
from tests.passes.test_pack_tokens import masks_of
from tests.snapshots import Messages

STAND_IN_ONLY = True
SHAPE = (12, 64)


@pytest.mark.parametrize("length", [1, 17, 500])
def test_tokens_are_counted_as_the_program_counts_them(length: int) -> None:
    kept = (0, length - 1)

    def body(p, i):
        selected = ",".join(map(str, sorted({*kept})))
        slots = p.emit(integer.token_slots(i["attention_mask"], name="slots", selected=selected))
        return [p.emit(integer.slot_starts(slots, name="starts"))]

    program = small_program(body)
    for name, mask in masks_of(3, length).items():
        given = {"input_ids": mask, "attention_mask": mask}
        (starts,) = evaluate(program.module, given, program.parameters)
        assert tokens_in_use(mask, sorted({*kept})) == starts[-1], name


def test_buckets_are_whole_tiles() -> None:
    linear, norm, rows = (1, 128, 24), (1, 4, 1), (48, 128, 1)
    assert token_buckets(4096, [norm, linear, rows]) == (128, 256, 512, 1024, 2048, 4096)
    assert token_buckets(600, [linear]) == (128, 256, 384, 600)
    assert token_buckets(128, [linear]) == (128,)
    assert token_buckets(51, []) == (51,)
    # 200 tokens are two tiles of 24 blocks each, 50 blocks of four rows, 75 of 128 runs.
    assert [blocks_in_use(each, 200, 1 << 20) for each in (linear, norm, rows)] == [48, 50, 75]
    assert blocks_in_use(norm, 200, 10) == 10
    assert blocks_in_use(None, 200, 7) == 7


@pytest.mark.parametrize("failing", ["cuGraphGetNodes", "cuGraphExecKernelNodeSetParams_v2"])
def test_a_driver_that_changes_no_graph(failing: str, messages: Messages) -> None:
    def nodes(_graph: object, found: Any, count: Any) -> int:
        count._obj.value = 1
        if found is not None:
            found[0] = 4096
        return 0

    done = {
        "cuGraphGetNodes": nodes,
        "cuGraphNodeGetType": lambda *_: 0,  # a kernel
        "cuGraphKernelNodeGetParams_v2": lambda *_: 0,
        "cuFuncGetName": lambda *_: 0,
        "cuKernelGetName": lambda *_: 0,
        "cuGraphExecKernelNodeSetParams_v2": lambda *_: 0,
    }
    GraphEditor(SimpleNamespace(**done)).set_blocks(1, 2, lambda _name, most: most + 1)
    done[failing] = lambda *_: 1
    with messages.raises(DeviceError):
        GraphEditor(SimpleNamespace(**done)).set_blocks(1, 2, lambda _name, most: most + 1)


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    return as_model(encoder_program(**ENCODERS["even"], seed=3, masked=True))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["tvm", "none"])
def test_fewer_tokens_launch_fewer_blocks(
    model: QuantizedModel, runtime: str, tmp_path: Path
) -> None:
    needs("g++")
    gpu = load()
    library = build(model, "t4", [SHAPE], tmp_path / "model.so", runtime=runtime)
    (function,) = library.metadata.functions
    assert function.tokens is not None
    buckets = function.tokens.buckets
    assert len(buckets) >= 4
    assert buckets[-1] == SHAPE[0] * SHAPE[1]
    made, seen, blocks = 0, set(), {}
    # Twice, in no order of size: a graph is made by the first call that needs it, and kept.
    for tokens in (buckets[-1], 13, *buckets, *(size + 1 for size in buckets[:-1]), 13):
        mask = _mask(tokens)
        bucket = next(size for size in buckets if size >= tokens_in_use(mask, function.tokens.kept))
        graphs, before = _graphs(gpu), gpu.calls("block")
        _check(library, model, mask)
        made += _graphs(gpu) - graphs
        if bucket in seen:
            assert blocks.setdefault(bucket, gpu.calls("block") - before) == (
                gpu.calls("block") - before
            )
        seen.add(bucket)
        assert made == len(seen)
    assert [blocks[size] for size in buckets] == sorted(blocks.values())
    assert blocks[buckets[0]] < blocks[buckets[-1]] / 2


def _graphs(gpu) -> int:
    names = ("cudaGraphInstantiate", "cuGraphInstantiateWithFlags")
    return sum(gpu.calls(name) for name in names)


def _mask(tokens: int) -> np.ndarray:
    """So many tokens, in texts of different lengths."""
    random, (texts, length) = np.random.default_rng(tokens), SHAPE
    lengths = random.multivariate_hypergeometric([length] * texts, tokens)
    return (np.arange(length) < lengths[:, None]).astype("int32")


def _check(library: Library, model: QuantizedModel, mask: np.ndarray) -> None:
    ids = np.random.default_rng(int(mask.sum())).integers(2, VOCABULARY, SHAPE)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    kinds = {var.name: str(var.ty.dtype) for var in model.module["main"].params}
    inputs = {name: given[name].astype(kinds[name]) for name in model.input_names}
    outputs = library.run(**inputs, dequantize=False).values()
    expected = evaluate(model.module, inputs, model.parameters)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got.values, want, str(mask.sum()))
