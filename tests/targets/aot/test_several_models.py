"""Several models in one C program, and a header with the library of another model."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.compiler import CompiledModel
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.targets.aot.c_text import is_prefix, prefix_of, prefixed
from ibert_tvm.targets.aot.header import Sizes, header_text
from ibert_tvm.targets.aot.interface import Interface, ShapeSpec, TensorSpec
from ibert_tvm.targets.aot.weights import weights_assembly
from ibert_tvm.targets.weights import write_weights
from tests.artefact.conftest import make_quantized
from tests.cache import compiled_in_memory_once
from tests.processes import run_captured

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "c-api.md"
FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-I.")
IDS = np.array([[2, 5, 3, 6, 7, 1, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 1, 0, 0]], np.int32)
Models = dict[str, tuple[QuantizedModel, CompiledModel]]


@pytest.fixture(scope="module")
def models() -> Models:
    """Two models of the same sizes and other weights."""
    one = make_quantized()
    table = np.roll(one.parameters["emb.weight"], 3)
    two = replace(one, parameters={**one.parameters, "emb.weight": table})
    return {
        prefix: (model, compiled_in_memory_once(model, "host", [(1, 8)], prefix=prefix))
        for prefix, model in (("first", one), ("second_model", two))
    }


def _run(*command: object, folder: Path) -> str:
    done = run_captured([str(word) for word in command], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _static(compiled: CompiledModel, folder: Path) -> list[str]:
    """What a static library of the model holds."""
    bare = compiled.bare
    assert bare is not None
    prefix = bare.interface.prefix
    work = folder / f"{prefix}.objects"
    work.mkdir()
    write_weights(bare.weights, bare.parameters, bare.weight_bytes, work)
    (work / "weights.s").write_text(weights_assembly(bare, separate=True))
    (work / f"{prefix}_model.h").write_text(bare.header)
    (folder / f"{prefix}_model.h").write_text(bare.header)
    (work / "driver.c").write_text(bare.driver_c)
    _run("cc", "-c", "-fPIC", *FLAGS, "driver.c", "weights.s", folder=work)
    for symbol, content in bare.objects.items():
        (work / f"{symbol}.o").write_bytes(content)
    objects = sorted(path.name for path in work.glob("*.o"))
    _run("ar", "rcs", f"../lib{prefix}_model.a", *objects, folder=work)
    return [f"lib{prefix}_model.a"]


def _shared(compiled: CompiledModel, folder: Path) -> list[str]:
    prefix = compiled.bare.interface.prefix  # type: ignore[union-attr]
    compiled.export(folder / f"{prefix}_model.so")
    return [f"./{prefix}_model.so"]


def _call(prefix: str) -> str:
    macro = prefix.upper()
    return f"""
static {macro}_ALIGNED uint8_t {prefix}_arena[{macro}_ARENA_BYTES_B1_S8];
static int call_{prefix}(void) {{
    {prefix}_context context;
    int32_t out[{macro}_OUTPUT_SENTENCE_EMBEDDING_ELEMENTS_B1_S8];
    int32_t status = {prefix}_init(&context, {macro}_ABI_VERSION, {macro}_FINGERPRINT,
                                   {prefix}_arena, sizeof {prefix}_arena);
    if (status == {macro}_OK) {{
        status = {prefix}_run_b1_s8(&context, ids, sizeof ids, mask, sizeof mask, out,
                                    sizeof out);
    }}
    if (status == {macro}_OK) {{
        printf("%d %d %d %d\\n", (int)out[0], (int)out[1], (int)out[2], (int)out[3]);
    }}
    return status;
}}
"""


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["output", "NULL"])
def test_names_of_tensors_that_the_driver_has_too(name: str, tmp_path: Path) -> None:
    model = make_quantized()
    output = replace(model.info.outputs[0], name=name)
    quantisation = {"outputs": [{"name": name, "scale": 1.0}]}
    model = replace(model, info=replace(model.info, outputs=(output,)), quantization=quantisation)
    compiled = ibert.compile(model, "host", [(1, 8)], runtime="none")
    library = load_library(compiled.export(tmp_path / "model.so"))
    (values,) = evaluate_integers(model, {"input_ids": IDS, "attention_mask": MASK}).values()
    outputs = library.run(input_ids=IDS, attention_mask=MASK, dequantize=False)
    np.testing.assert_array_equal(outputs[name].values, values)


# Kernels' objects by themselves leave the threads to whoever links them; a library has its own.
_SERIAL = """
typedef struct { void *handle; int32_t tasks; } group;
typedef int (*task)(int, group *, void *);
static int serial(task run, void *data, int tasks) {
    group alone = {NULL, 1};
    (void)tasks;
    return run(0, &alone, data);
}
int (*__TVMBackendParallelLaunch)(task, void *, int) = serial;
"""


def _program(*prefixes: str) -> str:
    values = {"ids": IDS, "mask": MASK}
    arrays = "".join(
        f"static const int32_t {name}[8] = {{{', '.join(map(str, value.ravel()))}}};\n"
        for name, value in values.items()
    )
    includes = "".join(f'#include "{prefix}_model.h"\n' for prefix in prefixes)
    calls = " | ".join(f"call_{prefix}()" for prefix in prefixes)
    return (
        f"#include <stdio.h>\n{includes}{_SERIAL}{arrays}{''.join(map(_call, prefixes))}"
        f"int main(void) {{ return {calls}; }}\n"
    )


def _expected(model: QuantizedModel) -> list[int]:
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    return [int(x) for x in evaluate_integers(model, inputs)["sentence_embedding"].ravel()]


Form = Callable[[CompiledModel, Path], list[str]]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("first", "second"),
    [(_static, _static), (_shared, _shared), (_static, _shared)],
    ids=["static", "shared", "mixed"],
)
def test_two_models_in_one_program(
    models: Models, tmp_path: Path, first: Form, second: Form
) -> None:
    linked = []
    for form, (prefix, (_, compiled)) in zip((first, second), models.items(), strict=True):
        linked += form(compiled, tmp_path)
        assert (tmp_path / f"{prefix}_model.h").is_file()
    (tmp_path / "main.c").write_text(_program(*models))
    _run("cc", *FLAGS, "main.c", *linked, "-o", "main", folder=tmp_path)
    lines = _run("./main", folder=tmp_path).splitlines()
    found = {
        prefix: [int(word) for word in line.split()]
        for prefix, line in zip(models, lines, strict=True)
    }
    assert found == {prefix: _expected(model) for prefix, (model, _) in models.items()}
    assert found["first"] != found["second_model"]


def test_the_header_of_another_model_is_refused(models: Models, tmp_path: Path) -> None:
    """The same sizes and names, other weights: only the fingerprints tell them apart."""
    model, compiled = models["first"]
    other, _ = models["second_model"]
    twin = compiled_in_memory_once(other, "host", [(1, 8)], prefix="first")
    compiled.export(tmp_path / "first_model.so")
    (tmp_path / "main.c").write_text(_program("first"))
    command = ("cc", *FLAGS, "main.c", "./first_model.so", "-o", "main")
    _run(*command, folder=tmp_path)
    assert _run("./main", folder=tmp_path).split() == [str(x) for x in _expected(model)]
    (tmp_path / "first_model.h").write_text(twin.bare.header)  # type: ignore[union-attr]
    _run(*command, folder=tmp_path)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (14, b"")


@pytest.mark.slow
def test_contexts_of_another_model_are_refused(models: Models, tmp_path: Path) -> None:
    linked = [word for _, compiled in models.values() for word in _shared(compiled, tmp_path)]
    (tmp_path / "main.c").write_text(
        '#include "first_model.h"\n#include "second_model_model.h"\n'
        "static FIRST_ALIGNED uint8_t arena[FIRST_ARENA_BYTES];\n"
        "int main(void) {\n"
        "    int32_t ids[8] = {0}, mask[8] = {0}, out[4];\n"
        "    first_context context;\n"
        "    if (first_init(&context, FIRST_ABI_VERSION, FIRST_FINGERPRINT, arena, sizeof arena))\n"
        "        return 99;\n"
        "    return second_model_run_b1_s8((second_model_context *)&context, ids, sizeof ids,\n"
        "                                  mask, sizeof mask, out, sizeof out);\n"
        "}\n"
    )
    _run("cc", *FLAGS, "main.c", *linked, "-o", "main", folder=tmp_path)
    assert subprocess.run(["./main"], cwd=tmp_path, check=False).returncode == 3


@pytest.mark.slow
def test_libraries_of_any_prefix_run_from_python(models: Models, tmp_path: Path) -> None:
    for prefix, (model, compiled) in models.items():
        path = compiled.export(tmp_path / f"{prefix}.so")
        assert read_metadata(path).prefix == prefix
        result = load_library(path).run(IDS, MASK, dequantize=False)["sentence_embedding"]
        assert result.values.ravel().tolist() == _expected(model)


def test_only_names_of_c_are_prefixes(models: Models) -> None:
    for text in ("ibert", "a", "minilm_l6_v2", "a" * 32):
        assert is_prefix(text)
    for text in (
        *("", "_a", "a_", "a__b", "A", "1a", "a-b", "a\n", "ä", "ibert_x", "a" * 33),
        *("a;system", "a/*", "../a"),
    ):
        assert not is_prefix(text)
        with pytest.raises(UsageError, match=r"^C names cannot begin with "):
            ibert.compile(models["first"][0], "host", [(1, 8)], runtime="none", prefix=text)
    with pytest.raises(UsageError, match=r"^a prefix of C names is given: 'a'\n"):
        ibert.compile(models["first"][0], "host", [(1, 8)], runtime="tvm", prefix="a")


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("all-MiniLM-L6-v2", "all_minilm_l6_v2"),
        ("minilm", "minilm"),
        ("7b", "m_7b"),
        ("ibert-base", "ibert"),
        ("größe", "gr_e"),
        ("", "ibert"),
        ("__", "ibert"),
        ("a" * 31 + "-b", "a" * 31),
    ],
)
def test_names_of_models_become_prefixes(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix and is_prefix(prefix)


def test_texts_keep_their_words() -> None:
    text = 'IBERT_OK ibert_run("ibert_run \\" IBERT_OK") /* ibert_tvm */ xibert_ .ibert.weights'
    assert prefixed(text, "a") == (
        'A_OK a_run("ibert_run \\" IBERT_OK") /* ibert_tvm */ xibert_ .ibert.weights'
    )


# -- the document -------------------------------------------------------------------------------


def _blocks(language: str) -> list[str]:
    parts = DOCUMENTATION.read_text().split(f"```{language}\n")[1:]
    return [part.partition("```")[0] for part in parts]


def test_the_first_example_of_the_document_compiles(tmp_path: Path) -> None:
    """Against the header of a model of MiniLM's inputs and output."""
    tokens = [
        TensorSpec(name, "int32", ("batch", "seq_len"), low=0, high=1)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    embedding = TensorSpec("sentence_embedding", "int16", ("batch", 384), 2.0**-15)
    interface = Interface(
        (ShapeSpec("main_b1_s32", 1, 32),), (*tokens,), (embedding,), 0, "", "minilm"
    )
    sizes = Sizes(64, {(1, 32): 99000}, 23_000_000, 0x0123456789ABCDEF)
    (tmp_path / "model.h").write_text(header_text(interface, sizes, "A model."))
    examples = _blocks("c")
    assert examples
    for index, example in enumerate(examples):
        (tmp_path / f"example{index}.c").write_text(example)
        _run("cc", "-c", *FLAGS, f"example{index}.c", folder=tmp_path)
        _run("c++", "-c", "-x", "c++", "-std=c++17", "-Wall", "-Werror", "-I.", f"example{index}.c",
             folder=tmp_path)  # fmt: skip


@pytest.mark.parametrize(("order", "status"), [("1234", 0), ("4321", 1)])
def test_weights_of_the_other_byte_order_do_not_compile(
    tmp_path: Path, order: str, status: int
) -> None:
    from ibert_tvm.targets.bare_metal.package import _LITTLE_ENDIAN

    (tmp_path / "weights.S").write_text(_LITTLE_ENDIAN)
    command = ["cc", "-E", "-U__BYTE_ORDER__", f"-D__BYTE_ORDER__={order}", "weights.S"]
    done = run_captured(command, cwd=tmp_path)
    assert done.returncode == status
    assert ("weights.bin is little-endian" in done.stderr) == bool(status)
