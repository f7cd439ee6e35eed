"""Whole models compiled for a GPU and loaded on the stand-in, or on a real GPU in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tvm import relax

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.runtime import Library, load_library
from tests.cuda.real_gpu import RealGpu
from tests.cuda.stand_in_gpu import images_for_stand_in, load
from tests.passes.models import VOCABULARY
from tests.passes.test_pack_tokens import masks_of

Inputs = dict[str, NDArray[np.generic]]

CAPABILITIES = {"t4": 75, "a100": 80, "h100": 90}
_KINDS = {2: "pooled", 3: "hidden_state"}


def as_model(program: IntegerProgram, image_size: tuple[int, int, int] | None = None):
    """Make a model of an integer program, whose outputs have a scale of 1.

    Parameters
    ----------
    program
        The program; integers are all that is compared.
    image_size
        Of a program that takes images.
    """
    function = program.module["main"]
    names = [var.name for var in function.params[: int(function.attrs["num_input"])]]
    kind = function.ret_ty
    outputs = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    info = ModelInfo(
        architecture="test",
        head="none",
        inputs=tuple(names),
        outputs=tuple(
            OutputInfo(f"output_{i}", f"output_{i}", _KINDS[len(output.shape.values)])
            for i, output in enumerate(outputs)
        ),
        hidden_size=1,
        num_layers=1,
        vocab_size=0 if image_size else 50,
        image_size=image_size,
    )
    scales = [{"name": f"output_{i}", "scale": 1.0} for i in range(len(outputs))]
    return QuantizedModel(
        read_program(program.module), program.parameters, info, {"outputs": scales}
    )


def build(
    model: QuantizedModel,
    target: str,
    shapes: Sequence[tuple[int, int]],
    path: Path,
    observed: bool = False,
    runtime: str = "tvm",
) -> Library:
    """Compile for a GPU, write the library, and load it on a device of that architecture.

    Parameters
    ----------
    model, target, shapes
        As of `ibert_tvm.compile`; with ``-m gpu`` the target is that of the machine's GPU.
    path
        File to write.
    observed
        Check every access of its kernels to memory.
    runtime
        What runs it.
    """
    gpu = load()
    if isinstance(gpu, RealGpu):
        target = gpu.target
    else:
        gpu.become(CAPABILITIES.get(target, gpu.capability))
    with images_for_stand_in(observed):
        ibert.compile(model, target=target, shapes=shapes, runtime=runtime).export(path)
    return load_library(path)


def random_inputs(model: QuantizedModel, batch: int, length: int, seed: int) -> Inputs:
    """Random ids; of several rows one is masked altogether, and the last one padded."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    if batch > 1:
        mask[-1, max(1, length // 2) :] = 0
    if batch > 2:
        mask[1] = 0
    vocabulary = model.info.vocab_size
    values = {
        "input_ids": random.integers(2, vocabulary, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, length)),
    }
    kinds = {var.name: str(var.ty.dtype) for var in model.module["main"].params}
    return {name: values[name].astype(kinds[name]) for name in model.input_names}


def check(library: Library, model: QuantizedModel, inputs: Inputs, runs: int = 2) -> None:
    """Run a library, the second time as a graph, and compare every integer.

    Parameters
    ----------
    library, model
        Compiled and source.
    inputs
        Of the types that the program takes.
    runs
        How often: the first run of a shape launches kernels, further ones a graph.
    """
    expected = evaluate(model.module, inputs, model.parameters)
    for run in range(runs):
        outputs = library.run(**inputs, dequantize=False)
        assert len(outputs) == len(expected)
        for (name, output), want in zip(outputs.items(), expected, strict=True):
            np.testing.assert_array_equal(output.values, want, err_msg=f"{name}, run {run}")
            assert np.unique(want).size > 3, "a constant output would prove nothing"


def check_mixes(library: Library, quantised: QuantizedModel, shape: tuple[int, int]) -> None:
    """A batch with every mix of lengths gives what the specification gives."""
    ids = np.random.default_rng(1).integers(2, VOCABULARY, shape)
    kinds = {var.name: str(var.ty.dtype) for var in quantised.module["main"].params}
    for name, mask in masks_of(*shape).items():
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
        inputs = {key: given[key].astype(kinds[key]) for key in quantised.input_names}
        expected = evaluate(quantised.module, inputs, quantised.parameters)
        outputs = library.run(**inputs, dequantize=False).values()
        for got, want in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(got.values, want, name)
