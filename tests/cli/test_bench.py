"""`ibert bench` on a real library: the document, the table, the errors."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ibert_tvm.common.file_seal import sealed_bytes
from tests.commands import Ibert, Refused
from tests.processes import PATIENCE, start_captured, without_progress, without_torch
from tests.runtime.conftest import TinyModel

_QUICK = ("--seconds", "0.02", "--threads", "1")
_FLOATS = ("real_tokens", "median_ms", "min_ms", "p90_ms")
_RESULT = {
    "function": str,
    **dict.fromkeys(("batch", "seq_len", "threads", "runs"), int),
    **dict.fromkeys((*_FLOATS, "sequences_per_second", "tokens_per_second"), float),
}


def test_document(ibert: Ibert, library: Path) -> None:
    outcome = ibert("bench", library, *_QUICK, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    document = outcome.document
    names = "schema_version library model target versions machine "
    names += "inputs seconds ceilings results"
    assert list(document) == names.split()
    assert (document["schema_version"], document["library"]) == (1, str(library))
    assert (document["target"], document["inputs"]) == ("host", "full rows")
    assert list(document["ceilings"]) == ["1"]
    assert set(document["ceilings"]["1"]) == {"instruction", "gmacs", "missing"}
    assert [(r["batch"], r["seq_len"]) for r in document["results"]] == [(1, 8), (1, 16), (4, 8)]
    for result in document["results"]:
        assert {key: type(result[key]) for key in _RESULT} == _RESULT
        assert 0 < result["min_ms"] <= result["median_ms"] <= result["p90_ms"]
        assert result["runs"] >= 10
        rows, tokens = result["batch"], result["batch"] * result["seq_len"]
        assert math.isclose(result["sequences_per_second"], rows / result["median_ms"] * 1e3)
        assert math.isclose(result["tokens_per_second"], tokens / result["median_ms"] * 1e3)
        # This library says nothing about its kernels, so nothing about its work is known.
        assert (result["macs"], result["gmacs"], result["of_ceiling"]) == (None, None, None)
        assert "layers" not in result


@pytest.mark.slow
def test_work_gives_throughput_and_the_fraction_of_the_ceiling(
    ibert: Ibert, tmp_path: Path
) -> None:
    kernel = {"name": "fused", "kind": "linear", "layer": "encoder.layer.0.fc", "macs": 10**6}
    functions = [{"name": "main_b1_s8", "batch": 1, "seq_len": 8, "kernels": [kernel]}]
    changes = {"functions": functions}
    path = TinyModel(shapes=((1, 8),), metadata_changes=changes).build(tmp_path / "m.so")
    document = ibert("bench", path, *_QUICK, "--json").document
    (result,) = document["results"]
    assert result["macs"] == 10**6
    assert math.isclose(result["gmacs"], 1 / result["median_ms"])
    ceiling = document["ceilings"]["1"]["gmacs"]
    if ceiling is None:
        assert result["of_ceiling"] is None
    else:
        assert math.isclose(result["of_ceiling"], result["gmacs"] / ceiling)


@pytest.mark.slow
def test_padding_makes_the_work_of_layers_uncertain_too(ibert: Ibert, tmp_path: Path) -> None:
    names = [
        kernel["name"]
        for kernel in ibert(
            "bench", TinyModel(shapes=((1, 8),)).build(tmp_path / "a.so"), *_QUICK, "--per-layer",
            "--json",
        ).document["results"][0]["layers"]["kernels"][:-1]
    ]  # fmt: skip
    kernels = [{"name": n, "kind": "linear", "layer": "encoder.0.fc", "macs": 9} for n in names]
    functions = [{"name": "main_b1_s8", "batch": 1, "seq_len": 8, "kernels": kernels}]
    changes = {"functions": functions}
    path = TinyModel(shapes=((1, 8),), metadata_changes=changes).build(tmp_path / "b.so")
    file = tmp_path / "texts.txt"
    file.write_text("hello\n", encoding="utf-8")
    for arguments, known in (((), True), (("--texts", file), False)):
        outcome = ibert("bench", path, *_QUICK, "--per-layer", "--json", *arguments)
        (kind, _outside) = sorted(
            outcome.document["results"][0]["layers"]["by_kind"], key=lambda part: -part["macs"]
        )
        assert (kind["name"], kind["macs"]) == ("linear", 9 * len(names))
        assert (kind["gmacs"] is not None) == known


@pytest.mark.slow
def test_layers_make_up_the_whole(ibert: Ibert, library: Path) -> None:
    arguments = ("--batch", "4", "--per-layer", "--json")
    (result,) = ibert("bench", library, *_QUICK, *arguments).document["results"]
    layers = result["layers"]
    assert list(layers) == ["kernels", "by_kind", "by_role", "by_layer"]
    for parts in layers.values():
        assert math.isclose(sum(part["share"] for part in parts), 1, abs_tol=1e-9)
        assert {tuple(part) for part in parts} == {
            ("name", "kind", "layer", "calls", "ms", "share", "macs", "gmacs", "bytes",
             "gbytes_per_second", "macs_per_byte", "of_ceiling")
        }  # fmt: skip
    assert layers["kernels"][-1]["name"] == "outside of kernels"
    assert {part["kind"] for part in layers["kernels"][:-1]} == {"unlisted"}


@pytest.mark.slow
def test_tables_for_people(ibert: Ibert, library: Path) -> None:
    outcome = ibert("bench", library, *_QUICK, "--batch", "1", "--seq-len", "8", "--per-layer")
    assert outcome.code == 0
    lines = outcome.stdout.split("\n")
    assert lines[0].startswith(f"{library} for host, on ")
    assert " ".join(lines[1].split()) == (
        "shape real threads ms min p90 seq/s tok/s GMAC/s ceiling runs"
    )
    assert lines[2].split()[:3] == ["1x8", "100%", "1"]
    assert lines[3].startswith("ceiling of 1 thread: ")
    assert "1x8, 1 thread, by kind of kernel" in lines
    assert "1x8, 1 thread, by place, repeated layers together" in lines
    assert "1x8, 1 thread, by layer" in lines


@pytest.mark.slow
def test_texts_count_real_tokens(ibert: Ibert, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("hello\nhello small\n", encoding="utf-8")
    arguments = ("--texts", file, "--batch", "1", "--seq-len", "8", "--json")
    document = ibert("bench", library, *_QUICK, *arguments).document
    (result,) = document["results"]
    assert document["inputs"] == str(file)
    assert result["real_tokens"] == (3 + 4) / 16  # with [CLS] and [SEP]
    assert result["gmacs"] is None  # padding makes the work uncertain


@pytest.mark.parametrize(
    "words",
    [
        *("--batch 4 --seq-len 16", "--threads 0", "--threads two", "--threads 1,"),
        *("--against FOLDER", "--texts FOLDER/texts.txt --against FOLDER"),
        "--per-layer --rpc board:9090",
    ],
)
def test_what_is_not_measured(refused: Refused, library: Path, tmp_path: Path, words: str) -> None:
    (tmp_path / "texts.txt").write_text("hello\n", encoding="utf-8")
    refused("bench", library, *words.replace("FOLDER", str(tmp_path)).split())


def test_truncated_library(ibert: Ibert, library: Path, tmp_path: Path) -> None:
    whole = library.read_bytes()
    path = tmp_path / "half.so"
    path.write_bytes(whole[: len(whole) // 2])
    outcome = ibert("bench", path, "--json")
    assert outcome.code == 3
    assert outcome.error["message"] == (
        f"cannot read the library {path}\n"
        f"  why: it is truncated: {len(whole) // 2} bytes of {sealed_bytes(library)}\n"
        "  what to do: copy the file again, or make it again with `ibert compile NAME.ibert "
        "-o model.so`"
    )


def test_library_for_another_processor(refused: Refused, tmp_path: Path) -> None:
    path = TinyModel(shapes=((1, 8),), features=("amx_fp99",)).build(tmp_path / "m.so")
    refused("bench", path)


def _process(library: Path, *arguments: str) -> subprocess.Popen[str]:
    return start_captured(
        [sys.executable, "-m", "ibert_tvm", "bench", str(library), *arguments], env=without_torch()
    )


@pytest.mark.slow
def test_more_threads_than_processors_is_a_warning(library: Path) -> None:
    usable = len(os.sched_getaffinity(0))
    arguments = ("--threads", f"{usable + 1}", "--seconds", "0", "--batch", "4", "--json")
    process = _process(library, *arguments)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(stdout)["results"][0]["threads"] == usable + 1
    assert without_progress(stderr) == (
        f"WARNING: {usable + 1} threads share {usable} processors, all that this process may use: "
        "expect to lose time\n"
    )


@pytest.mark.slow
def test_interrupt_ends_it_cleanly(library: Path) -> None:
    process = _process(library, "--seconds", "600", "--threads", "1", "-v")
    assert process.stderr is not None
    for line in process.stderr:  # -v says what is measured now
        if "1x8" in line:
            break
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, "")
    assert without_progress(stderr) == "error: interrupted\n"


@pytest.mark.slow
def test_turns_alternate_and_both_get_their_rounds(
    monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    """Against a model of sentence-transformers that is none: who is called when, how often."""
    from types import SimpleNamespace

    from ibert_tvm.bench import measure
    from ibert_tvm.runtime import load_library

    pytest.importorskip("torch", reason="what it is compared with needs torch")
    module = pytest.importorskip("sentence_transformers", reason="it is compared with that")
    calls: list[str] = []

    def encoder(name: str) -> SimpleNamespace:
        length = {"i": 128, "s": 256}[name]
        return SimpleNamespace(encode=lambda *_, **__: calls.append(name), max_seq_length=length)

    theirs = encoder("s")
    monkeypatch.setattr(measure, "Encoder", lambda _library: encoder("i"))
    monkeypatch.setattr(module, "SentenceTransformer", lambda *_, **__: theirs)
    loaded = load_library(library, num_threads=1)
    rates = measure.measure_sentences(loaded, ["a", "b"], 0, Path("folder"))
    assert "".join(calls) == "is" + "is" + "si" + "is"
    assert theirs.max_seq_length == 128  # both cut long texts off there
    assert [(r.name, r.threads, r.texts, len(r.seconds)) for r in rates] == [
        ("ibert", 1, 2, 3),
        ("sentence-transformers", 1, 2, 3),
    ]
    calls.clear()
    (alone,) = measure.measure_sentences(loaded, ["a"], 0)
    assert calls == ["i"] * 4 and alone.per_second > 0
