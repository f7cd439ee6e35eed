"""The paper's tables: its own figures are found again, and the files that are written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import __main__ as paper
from benchmarks.paper.functions import EXPONENTIALS, GELUS, exp_errors, gelu_errors
from benchmarks.paper.latency import CELLS, PAPER, speedups
from benchmarks.paper.quality import _calibration, _once, _replace_gelu
from ibert_tvm.model.tokenization import TokenizedBatch
from tests.documents.small_model import small_model

PRINTED = {
    "x sigmoid(1.702 x)": (0.012, 0.020),
    "h-GELU": (0.031, 0.069),
    "i-GELU": (0.0082, 0.018),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_errors_are_found_again(name: str) -> None:
    l2, largest = gelu_errors()[name]
    assert l2 == pytest.approx(PRINTED[name][0], rel=0.03)
    assert largest == pytest.approx(PRINTED[name][1], rel=0.03)


def test_errors_of_our_functions_are_those_of_their_tests() -> None:
    l2, largest = gelu_errors()["ours, 16-bit integers"]
    assert l2 < 0.00032 and largest < 0.00042 + 5e-5 + 0.6 * 4.24 / 32640 + 1e-4
    errors = exp_errors()
    assert errors["i-exp, as released"][1] == pytest.approx(1.913e-3, rel=1e-3)
    assert errors["ours, the polynomial of 2^-p"][1] == pytest.approx(1.544e-3, rel=1e-3)
    best = errors["the best quadratic (minimax)"]
    assert best[1] == min(largest for _, largest in errors.values())


def test_our_integers_are_gelu_beyond_16_bits_too() -> None:
    x = np.array([-100.0, -4.24, 0.0, 4.3, 100.0])
    np.testing.assert_array_equal(GELUS["ours, 16-bit integers"](x), [0, 0, 0, 4.3, 100])
    assert EXPONENTIALS["ours, integers of 8 bits (0 to 255)"](np.zeros(1))[0] == 1


def test_the_grid_has_sixteen_cells() -> None:
    assert len(CELLS) == len(set(CELLS)) == sum(map(len, PAPER.values())) == 16


def test_speed_is_against_the_fastest_float(tmp_path: Path) -> None:
    def row(peer: str, median: float, **more: object) -> dict[str, object]:
        return {"model": "bert-base", "cell": "1x128", "peer": peer, "median_ms": median, **more}

    rows = [
        *(row("ibert-int8", 2.0), row("pytorch-fp32", 9.0), row("pytorch-fp32-graph", 8.0)),
        *(row("pytorch-fp16", 1.0), row("own-fp32", 1.0, wrong="its outputs")),
    ]
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": rows}))
    assert speedups(file, "fp32") == {("bert-base", "1x128"): 4.0}
    assert speedups(tmp_path / "none.json", "fp32") == {}


def test_every_machine_that_was_measured_is_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"cuda.json": ("bert-large", 8.0), "paper-latency-cpu.json": ("bert-base", 6.0)}
    for name, (model, median) in times.items():
        row = {"model": model, "cell": "8x256", "threads": 2}
        own = {**row, "peer": "ibert", "median_ms": 2.0}
        rows = [own, {**row, "peer": "pytorch-fp32", "median_ms": median}]
        (tmp_path / name).write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.setattr(paper, "RESULTS", tmp_path)
    words = ["--table", "latency", "--output", str(tmp_path), "--charts", str(tmp_path)]
    assert paper.main(words) == 0
    lines = (tmp_path / "paper-latency.md").read_text(encoding="utf-8").splitlines()
    assert lines[2] == "| batch x tokens | paper, T4 | GPU | CPU, all cells |"
    assert "| bert-base 8x256 | 3.15 | - | 3.00 |" in lines
    assert "| bert-large 8x256 | 3.40 | 4.00 | - |" in lines
    assert sum(line.startswith("| bert-") for line in lines) == len(CELLS)


def test_the_float_model_runs_once_for_all_candidates() -> None:
    ran: list[tuple[int, ...]] = []

    def run(tokens: TokenizedBatch) -> list[np.ndarray]:
        ran.append(tokens.input_ids.shape)
        return [tokens.input_ids * 2]

    known: dict[bytes, object] = {}
    ids = np.arange(6, dtype=np.int32)
    for _ in range(2):  # candidates
        for shape in ((2, 3), (3, 2)):
            rows = ids.reshape(shape)
            tokens = TokenizedBatch(rows, np.ones_like(rows), np.zeros_like(rows), ())
            np.testing.assert_array_equal(_once(run, known)(tokens)[0], rows * 2)
    assert ran == [(2, 3), (3, 2)]


@pytest.mark.slow
def test_pairs_are_calibrated_on_as_batches(tmp_path: Path) -> None:
    import ibert_tvm

    (tmp_path / "names").mkdir()
    rows = [f"a name {n}\twhat it does, {n}\tmatch" for n in range(40)]
    path = tmp_path / "names" / "train.tsv"
    path.write_text("\n".join(["text\tpair\tlabel", *rows]), encoding="utf-8")
    model = ibert_tvm.load(small_model())
    batches = _calibration("names", model, tmp_path)
    assert [len(batch["input_ids"]) for batch in batches] == [32, 8]
    assert all(batch.keys() == set(model.info.inputs) for batch in batches)
    assert all(batch["token_type_ids"].max(axis=1).all() for batch in batches)
    ibert_tvm.quantize(model, calibration=batches, preset="paper", seq_len=16)


@pytest.mark.slow
def test_gelu_is_replaced_in_every_layer() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(small_model()).eval()
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        before = model(ids).logits
        _replace_gelu(model, lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))
        exact = model(ids).logits
        _replace_gelu(model, np.zeros_like)
        without = model(ids).logits
    torch.testing.assert_close(exact, before, rtol=0, atol=1e-5)
    assert (without - before).abs().max() > 1e-4


def test_rows_of_other_tasks_stay_as_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(task: str, *_: object) -> dict[str, object]:
        entry = {"difference": 0.1, "interval": [-0.1, 0.3]}
        return {
            "task": task,
            "samples": 2,
            "float": 70.0,
            "approximations": dict.fromkeys(GELUS, entry),
        }

    monkeypatch.setattr("benchmarks.paper.quality.ablation", measured)
    monkeypatch.setattr(paper, "draw_differences", lambda *_: None)
    words = ["--table", "ablation", "--output", str(tmp_path), "--charts", str(tmp_path)]
    for tasks, how in (("names,sections", "one epoch"), ("names", "two epochs")):
        assert paper.main([*words, "--tasks", tasks, "--training", how]) == 0
    rows = json.loads((tmp_path / "paper-ablation.json").read_text())["table"]["rows"]
    assert [(row["task"], row["training"]) for row in rows] == [
        ("sections", "one epoch"),
        ("names", "two epochs"),
    ]
    text = (tmp_path / "paper-ablation.md").read_text()
    assert "one epoch" in text and "two epochs" in text and text.count("+0.10") == 2 * len(GELUS)


@pytest.mark.slow
def test_a_table_is_written_with_its_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra bench brings it")
    words = ["--table", "gelu", "--output", str(tmp_path), "--charts", str(tmp_path)]
    assert paper.main(words) == 0
    assert "| i-GELU | 8.19e-03 | 1.82e-02 | 0.0082 | 0.018 |" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        f"paper-gelu.{kind}" for kind in ("json", "md", "png", "svg")
    }
    first = (tmp_path / "paper-gelu.svg").read_bytes()
    paper.main(words)
    assert (tmp_path / "paper-gelu.svg").read_bytes() == first
