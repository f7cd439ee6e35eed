"""A package in Node.js: the bits of the specification, and files that are checked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.runtime.package_engine import emulated_package
from ibert_tvm.targets import get_target
from ibert_tvm.targets.web.audit import Module, audit_module
from ibert_tvm.targets.web.package import exports
from tests.arm.packages import assert_bit_exact, inputs_for, reference
from tests.arm.tools import needs
from tests.random_models import random_ids

from .packages import VOCABULARY, tiny_bert, tiny_package, tiny_reranker


@pytest.fixture(scope="module")
def package() -> Path:
    return tiny_package()


def node(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has imported the package of a folder."""
    text = f'import {{ description, dequantize, load }} from "{folder}/index.js";\n{script}'
    command = ["node", "--input-type=module", "-e", text]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_bits_are_those_of_the_specification(package: Path) -> None:
    quantized = tiny_bert()
    with emulated_package(package) as library:
        for seed in (1, 2):
            given = random_ids(VOCABULARY, 2, 16, seed, tokens=seed * 6, types=2, first=3)
            given["input_ids"] *= given["attention_mask"]
            given = {name: given[name] for name in quantized.input_names}
            outputs = library.run(**given, dequantize=False)
            assert_bit_exact(quantized, given, [output.values for output in outputs.values()])


def test_texts_go_to_compiled_shapes(package: Path) -> None:
    quantized = tiny_bert()
    texts = [[5, 6, 7], [8] * 16, [9, 10]]
    done = node(
        f"const model = await load();\nconst found = model.embed({texts});\n"
        "console.log(JSON.stringify(found.map((one) => [...one.values])));\n"
        "console.log(JSON.stringify([...dequantize(found[0])]));\n"
        "try { model.embed([Array(17).fill(3)]); } catch (error) { console.log(error.message); }\n"
        "try { model.embed([[-1]]); } catch (error) { console.log(error.message); }",
        package,
    )
    assert done.returncode == 0, done.stderr
    integers, floats, too_long, wrong = done.stdout.splitlines()
    for ids, values in zip(texts, json.loads(integers), strict=True):
        given = inputs_for(quantized.input_names, len(ids), 0, VOCABULARY)
        given["input_ids"][:] = ids
        given["token_type_ids"][:] = 0
        np.testing.assert_array_equal(reference(quantized, given)[0][0], values)
    scale = quantized.quantization["outputs"][0]["scale"]
    expected = np.float32(np.array(json.loads(integers)[0]) * scale)
    np.testing.assert_array_equal(np.float32(json.loads(floats)), expected)
    assert too_long == "a text has 17 tokens; the model was compiled for 16"
    assert wrong == "an input holds a value that the model does not accept"


def test_strings_become_the_ids_of_the_tokenizer(package: Path) -> None:
    texts = ["The cat", "façade, Straße and [MASK] 你好", "word " * 40, "", "\ud800 lone", "\0"]
    script = (
        f"const model = await load(), texts = {json.dumps(texts)};\n"
        "const ids = texts.map((text) => model.tokenize(text));\n"
        "console.log(JSON.stringify(ids));\n"
        "const found = [texts, ids].map((given) => JSON.stringify(model.embed(given)));\n"
        "console.log(found[0] === found[1]);\n"
        "try { model.tokenize('x'.repeat(1 << 17)); } catch (error) { console.log(error.message); }"
    )
    done = node(script, package)
    assert done.returncode == 0, done.stderr
    ids, same, too_long = done.stdout.splitlines()
    tokenizer = Tokenizer(tiny_bert().tokenizer)
    clean = [text.replace("\ud800", "\ufffd") for text in texts]
    encoded = (
        tokenizer.encode([text], 16, allow_empty=True).inputs(["input_ids", "attention_mask"])
        for text in clean
    )
    assert json.loads(ids) == [
        one["input_ids"][one["attention_mask"] == 1].tolist() for one in encoded
    ]
    assert same == "true"
    assert too_long == "a text has 131072 bytes; there is room for 65536"


@pytest.mark.slow
def test_pairs_of_strings(package: Path) -> None:
    quantized, texts = (
        tiny_reranker(),
        [("The cat", "façade"), ("word " * 40, "cat " * 9), ("", "")],
    )
    script = (
        f"const model = await load(), texts = {json.dumps(texts)};\n"
        "const rows = texts.map((pair) => model.tokenizePair(...pair));\n"
        "console.log(JSON.stringify(rows));\n"
        "const scores = (given) => model.embed(given).map((one) => one.values[0]);\n"
        "const found = [texts, rows].map(scores);\n"
        "console.log(JSON.stringify(found));\n"
        "try { model.tokenizePair('x'.repeat(1 << 15), 'y'.repeat(1 << 16)); }\n"
        "catch (error) { console.log(error.message); }"
    )
    folder = tiny_package(pairs=True)
    assert 'embed([["a query", "a document"]])' in (folder / "README.md").read_text("utf-8")
    done = node(script, folder)
    assert done.returncode == 0, done.stderr
    rows, found, too_long = done.stdout.splitlines()
    tokenizer, scores = Tokenizer(quantized.tokenizer), []
    for pair, row in zip(texts, json.loads(rows), strict=True):
        batch = tokenizer.encode([pair], 16, allow_empty=True)
        assert row["ids"] == batch.input_ids[0].tolist()
        assert row["types"] == batch.token_type_ids[0].tolist()
        scores.append(reference(quantized, batch.inputs(quantized.input_names))[0].item())
    assert json.loads(found) == [scores, scores]
    assert too_long == "a text has 98304 bytes; there is room for 65536"
    refused = node(
        "try { (await load()).embed([['a', 'b']]); } catch (e) { console.log(e.message); }", package
    )
    assert refused.stdout == "the model does not take pairs of texts\n"


@pytest.mark.parametrize("name", ["model.wasm", "weights.bin"])
def test_a_changed_file_is_refused(package: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    content = bytearray((copy / name).read_bytes())
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    done = node("await load();", copy)
    assert done.returncode != 0
    assert f"{name} is not the file that this model was published with" in done.stderr


def test_the_package_is_small_closed_and_what_npm_takes(package: Path) -> None:
    files = {path.name for path in package.iterdir()}
    described = json.loads((package / "package.json").read_text(encoding="utf-8"))
    assert set(described["files"]) <= files
    assert re.fullmatch(r"[a-z][a-z0-9-]*", described["name"])
    module = Module((package / "model.wasm").read_bytes())
    assert [(one.kind, one.name) for one in module.imports] == [("memory", "memory")]
    assert set(module.exports) == set(exports({"text": {"pairs": False}}))
    assert module.section_bytes["code"] < 100_000


def test_every_instruction_is_decoded_as_llvm_decodes_it(package: Path) -> None:
    needs("llvm-objdump-14")
    path = package / "model.wasm"
    command = ["llvm-objdump-14", "-d", "--no-show-raw-insn", str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = re.findall(r"^ +[0-9a-f]+: +\t(\S+)", listing, re.MULTILINE)
    module = Module(path.read_bytes())
    ours = [one.mnemonic for function in module.functions for one in function.instructions]
    assert (
        len(theirs)
        == len(ours)
        == audit_module(
            path, get_target("wasm32"), exports({"text": {"pairs": False}})
        ).instructions
    )
    # Loads that widen have the name of the result's type there.
    differ = {(a, b) for a, b in zip(ours, theirs, strict=True) if a != b}
    assert all(a.rpartition(".")[2] == b.rpartition(".")[2] for a, b in differ)
