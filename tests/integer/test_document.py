"""The document of a program: every operator comes back, and everything else is refused."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.common import strict_json
from ibert_tvm.common.errors import DocumentError
from ibert_tvm.model import quantization_file
from ibert_tvm.relay_passes import names
from ibert_tvm.relay_passes.integer import OPERATORS, Operator, document
from ibert_tvm.relay_passes.integer.document import read_document, write_document
from ibert_tvm.relay_passes.integer.operators.functions import Relu
from ibert_tvm.relay_passes.integer.operators.slots import (
    PackTokens,
    SlotStarts,
    SlotTokens,
    TokenSlots,
)
from ibert_tvm.relay_passes.integer.operators.sums import Add
from ibert_tvm.relay_passes.integer.operators.tokens import Embedding, PrependTokens
from ibert_tvm.relay_passes.integer.program import Program, Step
from ibert_tvm.relay_passes.integer.relax_ops import read_program, to_module
from ibert_tvm.relay_passes.integer.types import SymbolicDim, TensorType
from tests.integer.test_operator_records import RECORDS

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "ibert-format.md"
BATCH, LENGTH = SymbolicDim("batch"), SymbolicDim("seq_len")
TOKENS = TensorType((BATCH, LENGTH), "int64")


def program(steps: list[tuple[Operator, dict[str, str]]], **values: TensorType) -> Program:
    """A program of these calls: values of dimensions in numbers are its parameters."""
    symbolic = {n: t for n, t in values.items() if not all(isinstance(d, int) for d in t.shape)}
    types, made = dict(values), []
    for operator, operands in steps:
        type_ = operator.result_type({name: types[read] for name, read in operands.items()})
        types[operator.name] = type_
        made.append(Step(operator, operands, type_))
    parameters = {name: type_ for name, type_ in values.items() if name not in symbolic}
    return Program(symbolic, parameters, tuple(made), (made[-1].name,))


EXAMPLE = program(
    [
        (
            Embedding("words", 4),
            {"ids": "input_ids", "table": "words.weight", "multiplier": "words.multiplier"},
        )
    ],
    input_ids=TOKENS,
    **{"words.weight": TensorType((30, 8), "int8"), "words.multiplier": TensorType((1,), "int32")},
)
LONGER = program(
    [
        (Embedding("words", 4), {"ids": "input_ids", "table": "table", "multiplier": "multiplier"}),
        (PrependTokens("longer"), {"x": "words", "tokens": "tokens"}),
        (Relu("relu"), {"x": "longer"}),
        (Add("sum"), {"a": "relu", "b": "longer"}),
    ],
    input_ids=TOKENS,
    table=TensorType((30, 8), "int8"),
    multiplier=TensorType((30,), "int32"),
    tokens=TensorType((1, 8), "int32"),
)


def test_a_document_is_the_one_that_is_documented() -> None:
    documented = re.search(r"```json\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert documented is not None
    assert write_document(EXAMPLE) == documented[1]
    assert read_document(documented[1]) == EXAMPLE


def test_symbolic_dimensions_and_order() -> None:
    assert '"result": {"dtype": "int32", "shape": ["batch", "seq_len + 1", 8]}' in write_document(
        LONGER
    )
    again = read_document(write_document(LONGER))
    assert again == LONGER
    assert (list(again.parameters), again.outputs) == (["table", "multiplier", "tokens"], ("sum",))


# -- every operator -----------------------------------------------------------------------------


def _of_record(operator: Operator, static: bool, optional: bool) -> Program:
    """One call; operands that are no constants are inputs, or what counts tokens makes them."""
    batch, length = (2, 5) if static else (BATCH, LENGTH)
    length = 5 if operator.OP == "integer.add_positions" else length  # as long as its table
    extents: dict[str, Any] = {"b": batch, "s": length, "n": batch + 1, "1": 1}
    extents |= {"C": 12, "K": 6, "N": 4, "V": 9, "H": 2, "W": 4, "D": 15, "P": 8, "R": 4}
    extents |= {"B": 16, "G": 1}
    if operator.OP == "integer.patches":
        extents["H"] = 6
    inputs, parameters = {}, {}
    for operand in operator.OPERANDS:
        if operand.optional and not optional:
            continue
        tokens = operand.shape.split(" or ")[0].split()
        shape: list[Any] = [batch, length] if tokens[0] == "..." else []
        shape += [extents[token.rpartition("|")[2]] for token in tokens if token != "..."]
        type_ = TensorType(tuple(shape), operator.dtypes_of(operand)[0])
        (parameters if operand.is_constant else inputs)[f"value.{operand.name}"] = type_
    types = {name.removeprefix("value."): t for name, t in {**inputs, **parameters}.items()}
    reads = {name: f"value.{name}" for name in types}
    step = Step(operator, reads, operator.result_type(types))
    counting: dict[str, Step] = {}
    for operand in operator.OPERANDS:
        if operand.counted is None or operand.name not in types:
            continue
        if not counting:
            inputs.setdefault("value.mask", TensorType((batch, length), "int8"))
            counting = _counting(inputs["value.mask"])
        del inputs[f"value.{operand.name}"]
        names = {(-1, "b s"): "slots", (0, "b s"): "tokens", (0, "n"): "starts"}
        reads[operand.name] = names[operand.counted, operand.shape]
    return Program(inputs, parameters, (*counting.values(), step), (step.name,))


def _counting(mask: TensorType) -> dict[str, Step]:
    """What tells the rows of a batch without padding, by name."""
    steps: dict[str, Step] = {}
    for operator, reads in (
        (TokenSlots("slots"), {"mask": "value.mask"}),
        (SlotTokens("tokens"), {"slots": "slots"}),
        (SlotStarts("starts"), {"slots": "slots"}),
    ):
        types = {"value.mask": mask, **{name: step.type for name, step in steps.items()}}
        type_ = operator.result_type({name: types[value] for name, value in reads.items()})
        steps[operator.name] = Step(operator, reads, type_)
    return steps


@pytest.mark.parametrize(
    ("operator", "operand", "given"),
    [
        (PackTokens("packed"), "tokens", "value.tokens"),
        (PackTokens("packed"), "tokens", "slots"),  # -1 at padding
        (SlotTokens("again"), "slots", "value.slots"),
    ],
)
def test_numbers_of_rows_are_counted_and_never_given(
    operator: Operator, operand: str, given: str, messages
) -> None:
    """Kernels read at these places: a file would say where in memory."""
    document = json.loads(write_document(_of_record(operator, static=False, optional=True)))
    document["inputs"].append(
        {"name": f"value.{operand}", "dtype": "int32", "shape": ["batch", "seq_len"]}
    )
    document["steps"][-1]["operands"][operand] = given
    messages.check(refusal(json.dumps(document)))


@pytest.mark.representatives(60)
@pytest.mark.parametrize("optional", [True, False], ids=["all", "needed"])
@pytest.mark.parametrize("static", [True, False], ids=["static", "symbolic"])
@pytest.mark.parametrize("operator", RECORDS, ids=lambda operator: operator.OP)
def test_every_operator_comes_back(operator: Operator, static: bool, optional: bool) -> None:
    made = _of_record(operator, static, optional)
    assert read_document(write_document(made)) == made
    module = to_module(made)
    assert tvm.relax.analysis.check_well_formed(module)
    assert read_program(module) == made


def test_a_whole_encoder_comes_back(encoder: Any) -> None:
    module, _ = encoder
    made = read_program(module)
    assert read_document(write_document(made)) == made
    assert read_program(to_module(made)) == made


def test_results_have_these_types_and_keep_symbolic_dimensions(messages) -> None:
    """Without optional operands, for each case of `RECORDS`."""
    found: dict[str, list[str]] = {}
    for operator in RECORDS:
        type_ = _of_record(operator, static=False, optional=False).steps[-1].type
        found.setdefault(str(type_), []).append(operator.OP.removeprefix("integer."))
    lines = (f"{type_}: {' '.join(sorted(names))}" for type_, names in sorted(found.items()))
    messages.check("\n".join(lines))


# Attributes in documents of version 2, for each case of `RECORDS`. Whoever changes those of an
# operator raises `document.VERSION`; new operators leave it.
VERSION_2 = Path(__file__).with_name("attributes_2.txt").read_text(encoding="utf-8")


def test_operators_of_version_2_have_the_attributes_of_version_2() -> None:
    assert document.VERSION == 2
    known = {tuple(line.split()) for line in VERSION_2.splitlines()}
    old = {operator for operator, *_ in known}
    has = {(r.OP.removeprefix("integer."), *list(r.to_dict())[1:]) for r in RECORDS}
    assert {case for case in has if case[0] in old} == known


# -- what is refused ----------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def refusal(text: str) -> str:
    with pytest.raises(DocumentError) as caught:
        read_document(text)
    return str(caught.value)


def step(index: int, **changes: Any) -> Change:
    return lambda d: d["steps"][index].update(changes)


def attributes(**changes: Any) -> Change:
    return lambda d: d["steps"][0]["attributes"].update(changes)


def operands(index: int, **changes: Any) -> Change:
    return lambda d: d["steps"][index]["operands"].update(changes)


def shape(*dims: Any) -> Change:
    return lambda d: d["inputs"][0].update(shape=list(dims))


REFUSED: dict[str, Change] = {
    "reads itself": operands(2, x="relu"),
    "reads a later step": operands(2, x="sum"),
    "circle": lambda d: (operands(1, x="relu")(d), operands(2, x="longer")(d)),
    "reads nothing": operands(2, x="nope"),
    "reads a number": operands(2, x=3),
    "unknown operand": operands(2, y="longer"),
    "missing operand": step(3, operands={"a": "relu"}),
    "no operands": step(2, operands=["x"]),
    "computed weight": operands(1, tokens="words"),
    "wrong dtype of an operand": lambda d: d["parameters"][0].update(dtype="uint8"),
    "unknown operator": step(2, operator="integer.softplus"),
    "operator of a list": step(2, operator=["integer.relu"]),
    "missing attribute": lambda d: d["steps"][0]["attributes"].pop("shift"),
    "unknown attribute": attributes(scale=3),
    "name as an attribute": attributes(name="other"),
    "word for a number": attributes(shift="four"),
    "truth for a number": attributes(shift=True),
    "fraction": attributes(shift=4.0),
    "65 bits": attributes(shift=2**63),
    "code in a word": attributes(shift="4; system()"),
    "64 bits to shift by": attributes(shift=64),
    "attributes of a list": step(0, attributes=[]),
    "result of another type": lambda d: d["steps"][2]["result"].update(dtype="int8"),
    "result of another shape": lambda d: d["steps"][2]["result"].update(
        shape=["batch", "seq_len", 8]
    ),
    "name twice": step(2, name="table"),
    "input twice": lambda d: d["inputs"].append(d["inputs"][0]),
    "end of a comment": step(2, name="relu*/ int x;"),
    "line splice": step(2, name="relu\\"),
    "line": step(2, name="relu\n#"),
    "line at the end": step(2, name="relu\n"),
    "alphabet": step(2, name="τ"),
    "no name": step(2, name=""),
    "long name": step(2, name="a" * 513),
    "number for a name": step(2, name=7),
    "dimension 0": shape("batch", 0),
    "dimension -1": shape("batch", -1),
    "long dimension": shape("batch", 2**31),
    "true dimension": shape("batch", True),
    "other symbol": shape("batch", "length"),
    "long sum": shape("batch", "seq_len + 1000000000"),
    "rank 5": shape("batch", 1, 1, 1, 1),
    "rank 0": shape(),
    "too many entries": lambda d: d["parameters"][0].update(shape=[2**16, 2**15]),
    "symbolic parameter": lambda d: d["parameters"][0].update(shape=["batch", 8]),
    "float dtype": lambda d: d["parameters"][0].update(dtype="float32"),
    "dtype of a list": lambda d: d["parameters"][0].update(dtype=[]),
    "unknown key": lambda d: d.update(module="os"),
    "missing key": lambda d: d.pop("outputs"),
    "missing key of a tensor": lambda d: d["inputs"][0].pop("dtype"),
    "no object": lambda d: d["inputs"].append(None),
    "no list": lambda d: d.update(steps={}),
    "no steps": lambda d: d.update(steps=[]),
    "no outputs": lambda d: d.update(outputs=[]),
    "too many outputs": lambda d: d.update(outputs=["sum"] * 65),
    "too many inputs": lambda d: d.update(inputs=d["inputs"] * 17),
    "too many parameters": lambda d: d.update(parameters=[0] * 16385),
    "too many steps": lambda d: d.update(steps=[0] * 4097),
    "unknown output": lambda d: d.update(outputs=["nope"]),
    "input as an output": lambda d: d.update(outputs=["input_ids"]),
    "newer version": lambda d: d.update(version=3),
    "older version": lambda d: d.update(version=0),
    "true version": lambda d: d.update(version=True),
    "other format": lambda d: d.update(format="onnx"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, messages) -> None:
    changed = json.loads(write_document(LONGER))
    REFUSED[case](changed)
    messages.check(refusal(json.dumps(changed)))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": "\\"[[[[[[[[", "b": [[[[[[]]]]]]}',
        "9" * 6_000,
        "-1." + "9" * 6_000,
        "1e999",
        '{"version": NaN}',
        '{"version": -Infinity}',
        '{"a": 1, "b": 2, "a": 3}',
        '["\\ud800"]',
        "{",
        " " * (8 * 2**20 + 1),
        '"[[[[[["',
    ],
    ids=lambda text: text[:12],
)
def test_refused_before_it_is_a_document(text: str, messages) -> None:
    messages.check(refusal(text))


def test_the_graphs_of_earlier_versions_are_refused_with_what_to_do(messages) -> None:
    messages.check(refusal(tvm.ir.save_json(to_module(EXAMPLE))))


def test_what_could_not_be_read_is_not_written(messages) -> None:
    step = EXAMPLE.steps[0]
    odd = replace(step, operator=replace(step.operator, name="two words"))
    with messages.raises(DocumentError):
        write_document(replace(EXAMPLE, steps=(odd,), outputs=("two words",)))


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("bert/encoder:0", "bert/encoder:0"),
        ("onnx::MatMul #2\n", "onnx::MatMul_#2_"),
        ("qkv[0:24]", "qkv[0:24]"),
        ("", "_"),
        ("x" + "a" * 200, "a" * 200),
    ],
)
def test_names_of_sources_become_names_that_can_be_written(name: str, becomes: str) -> None:
    assert names.safe_name(name) == becomes
    assert names.NAME.fullmatch(becomes)


def test_limits_are_those_that_are_documented() -> None:
    text = DOCUMENTATION.read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE))
    assert document.MAX_BYTES == 8 * 2**20 and rows["bytes of `model.json`"] == "8 MiB"
    assert rows["nesting of arrays and objects"] == str(document.MAX_DEPTH)
    assert rows["characters of a number"] == str(strict_json.MAX_DIGITS)
    assert rows["inputs"] == f"1 to {document.MAX_INPUTS}"
    assert rows["parameters"] == f"{document.MAX_PARAMETERS:,}"
    assert rows["steps"] == f"1 to {document.MAX_STEPS:,}"
    assert rows["outputs"] == f"1 to {document.MAX_OUTPUTS}"
    assert rows["name"] == f"1 to {names.MAX_NAME} of `A-Z a-z 0-9 _ . / : # [ ] -`"
    assert rows["word (attribute)"] == f"{names.MAX_NAME} of `A-Z a-z 0-9 _ ,`"
    assert rows["dimensions of a tensor"] == f"1 to {document.MAX_RANK}"
    assert document.MAX_ENTRIES == 2**31 - 1
    assert rows["a dimension"] == "1 to 2³¹ - 1; in a parameter a number"
    assert rows["entries of a tensor"] == "2³¹ - 1, symbolic dimensions counted as one"
    assert f"has at most {quantization_file.MAX_BYTES // 2**20} MiB" in text


# -- anything -----------------------------------------------------------------------------------


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += _paths(item, (*path, key))
    return found


WHOLE = json.loads(write_document(LONGER))
PATHS = _paths(WHOLE)
LEAVES = [
    *("input_ids", "table", "tokens", "words", "relu", "sum", "batch", "seq_len", "seq_len + 1"),
    *("int8", "int64", *OPERATORS, "x", "a", "name", "shift", "", "\x00", "\\", "a\nb"),
    *(0, 1, -1, 7, 8, 30, 31, 2**31, 2**63, -(2**63), 10**30, True, None, 1.5, 4.0, [], {}),
]
VALUES = st.sampled_from(LEAVES) | st.recursive(
    st.integers() | st.text(max_size=4) | st.sampled_from(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "dtype", "shape", "x", "a"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 3), VALUES), min_size=1, max_size=3)
)
def test_an_edited_document_is_refused_or_means_what_it_says(edits: Any) -> None:
    edited = copy.deepcopy(WHOLE)
    for path, action, value in edits:
        parent: Any = edited
        try:
            for key in path[:-1]:
                parent = parent[key]
            if action == 0:
                del parent[path[-1]]
            elif action == 1 and isinstance(parent, list):
                parent.insert(path[-1], value)
            elif action == 1:
                parent[str(value)[:9]] = value
            else:
                parent[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier edit took the place away
    try:
        read = read_document(json.dumps(edited))
    except DocumentError as error:
        assert error.what and error.todo
        return
    assert json.loads(write_document(read)) == edited


@given(st.text() | st.text(alphabet='{}[]",:\\0123456789-.eE ntrufalsNI', max_size=40))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        read_document(text)
