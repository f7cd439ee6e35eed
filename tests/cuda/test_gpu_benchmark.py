"""The benchmark on GPUs: turns, budgets, checks, results, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.cuda import __main__ as command
from benchmarks.cuda import measure, report
from benchmarks.cuda.cells import SPECS, Task, cosine, paper_tasks, pooled
from benchmarks.cuda.errors import GpuBenchmarkError
from benchmarks.cuda.goals import check_goals, ratio
from benchmarks.cuda.peers import PEERS
from benchmarks.cuda.peers.base import CellRun, Loaded
from benchmarks.cuda.prepared import Prepared, hash_integers
from benchmarks.cuda.sensors import Sensors
from benchmarks.cuda.store import continue_result, is_measured, save
from benchmarks.cuda.worker import Server
from benchmarks.effort import Effort
from benchmarks.models import Cell
from benchmarks.process import WorkerError
from benchmarks.store import StoreError

TASK = Task("bert-base", Cell(1, 128))
SOFTWARE = {"sources": "5eed", "commit": "c0ffee", "modified": False}


def row(peer: str, median: float, task: Task = TASK, **more: Any) -> dict[str, Any]:
    return {
        **{"model": task.model, "cell": str(task.cell), "peer": peer},
        **{"median_ms": median, "min_ms": median * 0.9, "tops": 1.0, "cosine": 0.9999},
        **{"bit_exact": True if peer == "ibert-int8" else None, "sensors": []},
        **more,
    }


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    gpu = {"name": "T", "capability": 75, "multiprocessors": 40, "clock_mhz": 1590}
    gpu |= {"memory_mib": 15360, "l2_kib": 4096, "kernel_driver": "580.1", "driver": "13.0"}
    return {
        **{"schema": 1, "kind": "measurement", "gpu": gpu, "skipped": {"x on y": "not there"}},
        "machine": {"processor": "P", "cores": 2},
        "software": {"python": "3.11", "packages": {"numpy": "2"}, "time": "now"},
        "prepared": {"target": "t4", "architectures": ["sm_75"], "software": SOFTWARE},
        "settings": {"rounds": 7, "seconds": 0.3},
        "peers": {name: peer.title for name, peer in PEERS.items()},
        "precision": {name: peer.precision for name, peer in PEERS.items()},
        "limits": {
            "mma": {"value": 100.0, "unit": "TOPS"},
            "read": {"value": 240.0, "unit": "GB/s"},
            "copy": {"value": 250.0, "unit": "GB/s"},
        },
        "rows": list(rows),
    }


def test_the_cells_are_those_of_the_paper():
    tasks = paper_tasks()
    assert len(tasks) == 16
    assert {str(task.cell) for task in tasks} == {
        f"{batch}x{length}" for batch in (1, 2, 4, 8) for length in (128, 256)
    }
    assert TASK.macs == 12 * (128 * 12 * 768**2 + 2 * 128**2 * 768)


def test_the_smallest_cosine_of_the_rows_counts():
    reference = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert cosine(reference * 3, reference) == 1.0
    assert cosine(np.array([[1.0, 0.0], [1.0, 0.0]]), reference) == 0.0
    assert cosine(np.full((2, 2), np.nan), reference) == 0.0
    assert cosine(np.ones((2, 3)), reference) == 0.0
    np.testing.assert_array_equal(pooled(np.arange(8).reshape(1, 4, 2)), [[3.0, 4.0]])


def test_integers_are_the_same_whatever_type_holds_them():
    values = np.arange(-3, 3).reshape(2, 3)
    assert hash_integers(values.astype("int8")) == hash_integers(values.astype("int32"))
    assert hash_integers(values) != hash_integers(values.reshape(3, 2))
    assert hash_integers(values) != hash_integers(values + 1)


class _Worker:
    """Answers without a process; what it does follows from the peer's name."""

    log: list[str]

    def __init__(self, peer, model, prepared):
        if peer == "broken":
            raise WorkerError("ended: no such model")
        self.peer, self.hello, self.turns = peer, {"load_seconds": 0.5}, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, message, timeout):
        kind = message["do"]
        if kind == "cell":
            exact = {"ibert-int8": True}.get(self.peer)
            facts = {"prepare_seconds": 1.0, "estimate_ms": 2.0, "device_only": False}
            return {**facts, "cosine": 0.5 if self.peer == "pytorch-fp16" else 1.0,
                    "bit_exact": exact}  # fmt: skip
        if kind == "kernels":
            call = {"name": "k", "kind": "linear", "macs": 5, "bytes": 7, "median_ms": 0.5}
            layers = [{**call, "layer": f"encoder.layer.{n}.up", "min_ms": 0.4} for n in (0, 1)]
            return {"kernels": layers if self.peer == "ibert-int8" else None}
        self.turns += 1
        if self.peer == "pytorch-fp32" and self.turns == 2:
            return {"failed": "RuntimeError: out of memory"}
        self.log.append(self.peer)
        return {"call_ms": [3.0, 1.0, 2.0], "device_ms": [0.5], "peak_mib": 10.0}


def _measured(monkeypatch, peers, rounds, in_time=lambda: True):
    log: list[str] = []
    monkeypatch.setattr(_Worker, "log", log, raising=False)
    with measure.workers("bert-base", peers, Prepared(Path("nowhere")), _Worker) as (ready, failed):
        rows = measure.measure_cell(TASK, ready, Effort(rounds=rounds), Sensors(""), in_time)
    return {entry["peer"]: entry for entry in rows}, failed, log


def test_peers_take_turns_and_failures_stay_alone(monkeypatch):
    peers = ["ibert-int8", "broken", "pytorch-fp32", "pytorch-fp16"]
    rows, failed, log = _measured(monkeypatch, peers, 3)
    assert failed == {"broken": "ended: no such model"}
    assert log == [
        *("ibert-int8", "pytorch-fp32", "pytorch-fp16"),
        *("pytorch-fp16", "ibert-int8"),  # backwards; the third fails
        *("ibert-int8", "pytorch-fp16"),
    ]
    own = rows["ibert-int8"]
    assert (own["median_ms"], own["min_ms"], own["runs"]) == (2.0, 1.0, 9)
    assert own["device_median_ms"] == 0.5
    assert own["tops"] == round(2 * TASK.macs / 2.0 * 1e-9, 2)
    assert own["kernels"] == [
        {
            **{"role": "encoder.layer.*.up", "kind": "linear", "calls": 2, "macs": 10},
            **{"bytes": 14, "median_ms": 1.0, "min_ms": 0.8},
        }
    ]
    assert rows["pytorch-fp32"]["failed"] == "RuntimeError: out of memory"
    assert rows["pytorch-fp16"]["wrong"] == (
        "the cosine of its output to the float model's is 0.5, below 0.99"
    )


def test_a_budget_ends_the_rounds(monkeypatch):
    answers = iter([True, False])
    _, _, log = _measured(monkeypatch, ["ibert-int8"], 7, lambda: next(answers))
    assert log == ["ibert-int8"] * 2
    budget = command._Budget(1.0)
    assert budget.allows(50.0)
    assert not budget.allows(70.0)
    assert budget.used_up and not budget.allows()
    assert command._Budget(None).allows(1e9)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"bit_exact": False}, "its integers are not those of the integer specification"),
        ({"texts_exact": False}, "the integers of a text depend on where in a batch it is"),
        ({"bit_exact": None}, "its integers were compared with nothing: no reference was prepared"),
        ({"cosine": 0.9}, "the cosine of its output to the float model's is 0.9, below 0.98"),
    ],
)
def test_no_peer_is_measured_broken(changes, problem):
    assert measure.wrong(row("ibert-int8", 1.0, **changes)) == problem


class _Run(CellRun):
    def __init__(self, values):
        self.values, self.calls = values, 0

    def call(self):
        self.calls += 1

    def output(self):
        return self.values * 0.5

    def integers(self):
        return self.values

    @contextmanager
    def texts(self):
        self.masked = True
        yield self.values.shape[1] > 4
        self.masked = False

    def texts_exact(self):
        return not self.masked


class _Fixed(Loaded):
    def cell(self, cell):
        if cell.batch > 2:
            raise MemoryError("GPU is full\nbacktrace")
        return _Run(np.full((cell.batch, cell.seq_len, 2), 3))


def test_a_worker_compares_its_outputs(tmp_path):
    prepared = Prepared(tmp_path)
    (tmp_path / "m").mkdir()
    right, wrong = np.full((1, 4, 2), 3), np.full((2, 4, 2), 2)
    np.savez(
        prepared.expected_file("m"),
        **{"1x4.integers": hash_integers(right), "1x4.pooled": np.ones((1, 2), "float32")},
        **{"2x4.integers": hash_integers(wrong), "2x4.pooled": np.ones((2, 2), "float32")},
    )
    server = Server(_Fixed(), "m", prepared)
    assert server.answer({"do": "kernels", "runs": 1}) == {
        "failed": "RuntimeError: no cell was prepared"
    }
    said = server.answer({"do": "cell", "cell": "1x4"})
    assert (said["bit_exact"], said["cosine"], said["device_only"]) == (True, 1.0, False)
    assert server.answer({"do": "cell", "cell": "2x4"})["bit_exact"] is False
    said = server.answer({"do": "cell", "cell": "1x5"})
    assert (said["bit_exact"], said["texts_exact"]) == (None, True)
    turn = server.answer({"do": "turn", "seconds": 0.0, "warm_up": 0.0, "least": 4})
    assert len(turn["texts_ms"]) == 4
    assert server.answer({"do": "cell", "cell": "4x4"}) == {"failed": "MemoryError: GPU is full"}
    server.answer({"do": "cell", "cell": "1x4"})
    turn = server.answer({"do": "turn", "seconds": 0.0, "warm_up": 0.0, "least": 4})
    assert len(turn["call_ms"]) == 4 and not {"device_ms", "texts_ms"} & {*turn}
    assert server.answer({"do": "kernels", "runs": 1}) == {"kernels": None}


def _all_cells(**medians: float) -> list[dict[str, Any]]:
    return [
        row(peer.replace("_", "-"), median, task)
        for task in paper_tasks()
        for peer, median in medians.items()
    ]


def test_goals():
    kernels = [{"role": "up", "kind": "linear", "calls": 12, "macs": 10**9, "median_ms": 0.025}]
    rows = _all_cells(ibert_int8=1.0, pytorch_fp32=5.0, pytorch_fp32_graph=4.5, pytorch_fp16=1.5)
    for entry in rows:
        if entry["peer"] == "ibert-int8":
            entry["kernels"] = kernels
    fp32, fp16, of_limit = check_goals(document(*rows))
    assert (fp32.met, fp32.measured) == (True, "4.50 (bert-base 1x128); of minima 4.50")
    assert (fp16.met, fp16.cells) == (True, "16 of 16")
    assert (of_limit.met, of_limit.measured) == (True, "80% (up)")
    slow = check_goals(document(*rows, row("pytorch-fp32", 3.0)))[0]
    assert (slow.met, slow.measured) == (
        False,
        "3.00 (bert-base 1x128); of minima 3.00; missed in 1",
    )
    assert [goal.met for goal in check_goals(document())] == [None, None, None]
    # What is wrong is no result.
    broken = [{**entry, "wrong": "x"} for entry in rows if entry["peer"] == "ibert-int8"]
    assert check_goals(document(*broken))[0].met is None


def test_copies_are_left_out_for_the_peer_only():
    group = {
        "ibert-int8": row("ibert-int8", 2.0, device_median_ms=1.0),
        "pytorch-fp32": row("pytorch-fp32", 8.0, device_median_ms=6.0),
    }
    assert ratio(group, "PyTorch FP32") == 4.0
    assert ratio(group, "PyTorch FP32", "device_median_ms") == 3.0
    assert ratio(group, "own FP32") is None


def test_the_report_shows_what_was_measured(tmp_path):
    kernels = [
        {"role": "a.*.up", "kind": "linear", "calls": 2, "macs": 10**9, "bytes": 10**6,
         "median_ms": 0.04},
        {"role": "embeddings.add", "kind": "add", "calls": 1, "macs": 0, "bytes": 10**9,
         "median_ms": 0.01},
    ]  # fmt: skip
    sensors = [{"clock_mhz": 1200, "celsius": 60, "limited_by": ["power cap"]}, {"clock_mhz": 1590}]
    result = document(
        row("ibert-int8", 1.0, kernels=kernels, sensors=sensors, texts_median_ms=0.4),
        row("pytorch-fp32", 4.0, device_median_ms=3.5),
        row("pytorch-fp16", 1.0, wrong="it is broken"),
        {"model": "bert-base", "cell": "2x128", "peer": "ibert-fp32", "failed": "no memory"},
    )
    document_path, text_path = report.write_report(result, tmp_path / "out" / "cuda")
    assert json.loads(document_path.read_text())["kind"] == "measurement"
    text = text_path.read_text()
    assert "| bert-base | 1x128 | 4.00 (4.00) | 3.50 |" in text
    assert "| a.*.up | linear | 2 | 40.0 | 80.0% | 50.0 | 50% | 25 | 10% |" in text
    assert "| embeddings.add | add | 1 | 10.0 | 20.0% | – | – | – | – |" in text
    assert "| bert-base | 1x128 | 1 | 0.4 | 2.50 |" in text
    assert "1200 to 1590 MHz | 60 °C | – | power cap |" in text
    assert "**`pytorch-fp16` on bert-base 1x128: it is broken.**" in text
    assert "- `ibert-fp32` on bert-base 2x128: no memory" in text
    assert "- x on y: not there" in text


def test_a_run_is_continued_on_the_same_gpu_only(tmp_path, messages):
    path = tmp_path / "cuda.json"
    failed = {"model": "bert-base", "cell": "2x128", "peer": "ibert-int8", "failed": "x"}
    save(document(row("ibert-int8", 1.0), failed), path)
    fresh = document()
    assert continue_result(fresh, path) == 1
    assert is_measured(fresh, TASK, ["ibert-int8"])
    assert not is_measured(fresh, Task("bert-base", Cell(2, 128)), ["ibert-int8"])
    other = document()
    other["gpu"]["name"] = "H"
    with messages.raises(StoreError):
        continue_result(other, path)


def test_a_folder_that_was_not_prepared(tmp_path, messages):
    with pytest.raises(GpuBenchmarkError) as caught:
        Prepared(tmp_path / "none").manifest()
    assert str(caught.value).splitlines()[0] == f"{tmp_path / 'none'} was not prepared"
    (tmp_path / "manifest.json").write_text('{"schema": 0}')
    with messages.raises(GpuBenchmarkError) as caught:
        Prepared(tmp_path).manifest()


def test_what_the_command_refuses(capsys):
    for arguments, words in (
        (["--peers", "cublas"], "--peers: cublas is not known; there are ibert-int8, "),
        (["--models", ""], "--models: nothing is not known; there are "),
        (["--cells", "8"], "cell '8': expected BATCHxLENGTH, for example 8x128"),
        (["--rounds", "0"], "rounds and least must be at least 1"),
        (["--quantised", "x"], "--quantised: 'x' is not NAME=PATH.ibert"),
    ):
        with pytest.raises(SystemExit) as caught:
            command.main(arguments)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


def test_a_target_that_is_no_gpu(tmp_path, caplog):
    arguments = ["--prepare", str(tmp_path), "--target", "x86-64-v3", "--models", "bert-tiny"]
    assert command.main(arguments) == 2
    assert "target 'x86-64-v3' is not a GPU" in caplog.text


@pytest.mark.slow
def test_pytorch_peers_compute_bert():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from benchmarks.cuda.torch_bert import TorchBert

    spec = SPECS["bert-tiny"]
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=spec.intermediate,
    )
    torch.manual_seed(0)
    original = transformers.BertModel(config, add_pooling_layer=False).eval()
    weights = {name: tensor.numpy() for name, tensor in original.state_dict().items()}
    ids = torch.randint(0, 100, (2, 9))
    with torch.inference_mode():
        expected = original(input_ids=ids).last_hidden_state
    found = TorchBert(spec, weights, "cpu", torch.float32)(ids)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=2e-5)
    half = TorchBert(spec, weights, "cpu", torch.float16)(ids)
    np.testing.assert_allclose(half.float().numpy(), expected.numpy(), atol=0.05)


class _Stream:
    """A stream of a processor, which has done its work when it is asked for it."""

    def wait_stream(self, _other: Any) -> None:
        pass

    synchronize = replay = lambda self: None


@pytest.mark.slow
def test_compiled_pytorch_peers(monkeypatch, tmp_path):
    """On a processor, with what torch and torchao do on a GPU written down."""
    torch = pytest.importorskip("torch")
    from benchmarks.cuda import torch_bert, weights
    from benchmarks.cuda.peers import pytorch

    spec, calls = SPECS["bert-tiny"], []
    prepared, random = Prepared(tmp_path), np.random.default_rng(0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(pytorch, "find_spec", lambda name: name if name != "torchao" else None)
    folder = prepared.folder(spec.name)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    peer, int8 = PEERS["pytorch-fp16-compiled"], PEERS["pytorch-int8-compiled"]
    assert not peer.by_default and peer.missing(prepared, spec.name) is None
    assert int8.missing(prepared, spec.name) == (
        "torchao is not installed; pip install torchao for this peer"
    )

    def quantize_(module, config):
        (linear,) = module
        calls.append((config, tuple(linear.weight.shape), tuple(linear.bias.shape)))

    torchao = ModuleType("torchao.quantization")
    torchao.quantize_, torchao.Int8DynamicActivationInt8WeightConfig = quantize_, lambda: "int8"
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", torchao)
    names = {name: shape for name, shape in _bert_shapes(spec)}
    made = {name: random.normal(0, 0.05, shape) for name, shape in names.items()}
    monkeypatch.setattr(weights, "read_weights", lambda _folder: made)
    bert = torch_bert.TorchBert
    monkeypatch.setattr(torch_bert, "TorchBert", lambda s, w, _, dtype: bert(s, w, "cpu", dtype))
    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, _Stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    for name in ("cuda", "pin_memory"):
        monkeypatch.setattr(torch.Tensor, name, lambda tensor: tensor)
    monkeypatch.setattr(torch, "compile", lambda model, **how: calls.append(how) or model)
    cell = Cell(1, 16)
    plain = PEERS["pytorch-fp16-graph"].load(prepared, spec).cell(cell).output()
    assert calls == []
    how = {"mode": "max-autotune-no-cudagraphs", "fullgraph": True, "dynamic": False}
    np.testing.assert_array_equal(peer.load(prepared, spec).cell(cell).output(), plain)
    assert calls == [how]
    loaded = int8.load(prepared, spec)
    hidden, inner = spec.hidden, spec.intermediate
    shapes = [(3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)]
    assert calls[1:] == [("int8", shape, shape[:1]) for shape in shapes] * spec.layers
    np.testing.assert_array_equal(loaded.cell(cell).output(), plain)
    assert calls[-1] == how


def _bert_shapes(spec: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of BERT's weights."""
    hidden, inner = spec.hidden, spec.intermediate
    for table, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{table}_embeddings.weight", (rows, hidden)
    parts = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
    parts |= {"attention.output.dense": (hidden, hidden)}
    parts |= {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
    norms = ("attention.output.LayerNorm", "output.LayerNorm")
    for number in range(spec.layers):
        for name, shape in (*parts.items(), *((norm, (hidden,)) for norm in norms)):
            yield f"encoder.layer.{number}.{name}.weight", shape
            yield f"encoder.layer.{number}.{name}.bias", shape[:1]
    yield "embeddings.LayerNorm.weight", (hidden,)
    yield "embeddings.LayerNorm.bias", (hidden,)


def test_published_figures_are_quoted_beside_ours():
    text = report._markdown(document(row("ibert-int8", 1.25), row("pytorch-int8-compiled", 2.5)))
    assert "| bert-base | 1x128 | T4 (16GB) | 1.69 (1.95) | 1.25 |" in text
    assert "| bert-base | 1x128 | A100 (40GB) | 0.58 (0.67) | 1.25 |" in text
    assert "bert-large" not in text
    assert "| PyTorch INT8 | 2.00 | 2.00 | 2.00 |" in text
    assert "PyTorch FP16 |" not in text


def test_sensors_that_are_not_there():
    assert Sensors("").read() == {}
    absent = Sensors("GPU-1", "libno-such-nvml.so")
    assert absent.missing.startswith("NVML cannot be loaded: libno-such-nvml.so")
    assert absent.version() is None
