"""What the generated header and driver say of inputs and outputs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.targets.aot import Interface, ShapeSpec, TensorSpec
from ibert_tvm.targets.aot.c_text import comment, identifier, quoted, unique_identifiers
from ibert_tvm.targets.aot.header import STATUSES, Sizes, header_text


@given(st.floats(min_value=2.0**-40, max_value=2.0**20))
def test_a_scale_is_a_fraction_of_31_bits(scale: float) -> None:
    multiplier, shift = TensorSpec("x", "int8", (1,), scale).dyadic_scale
    assert 2**30 <= multiplier < 2**31
    exact = Fraction(scale)
    assert abs(Fraction(multiplier) / Fraction(2) ** shift - exact) <= exact / 2**31


def test_scales_at_the_edges() -> None:
    assert TensorSpec("x", "int8", (1,), 0.0).dyadic_scale == (0, 0)
    assert TensorSpec("x", "int8", (1,), 1.0).dyadic_scale == (2**30, 30)
    below = math.nextafter(1.0, 0.0)  # rounds up to a power of two
    assert TensorSpec("x", "int8", (1,), below).dyadic_scale == (2**30, 30)
    assert TensorSpec("x", "int8", (1,), 4096.0).dyadic_scale == (2**30, 18)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "float32", (1,)), "tensor x: dtype 'float32'"),
        (("x", "int8", ("rows",)), r"tensor x: shape \('rows',\)"),
        (("x", "int8", (0,)), r"tensor x: shape \(0,\)"),
        (("x", "int8", (1, 2, 3, 4, 5)), "tensor x: rank 5, at most 4"),
        (("x", "int8", (1,), -1.0), "tensor x: scale -1.0"),
        (("x", "int8", (1,), math.inf), "tensor x: scale inf"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        TensorSpec(*arguments)


def test_a_program_has_something_to_do() -> None:
    with pytest.raises(ValueError, match=r"^a program has at least one function, input and output"):
        Interface((), (TensorSpec("x", "int8", (1,)),), (TensorSpec("y", "int8", (1,)),))


def test_names_become_identifiers() -> None:
    assert identifier("last_hidden_state") == "last_hidden_state"
    assert identifier("logits.0/größe") == "logits_0_gr__e"
    assert identifier("0") == "x_0"
    assert identifier("class") == "x_class"
    assert identifier("") == "x_"
    assert unique_identifiers(["a.b", "a_b", "a/b"]) == ["a_b", "a_b_2", "a_b_3"]
    # A name that is taken already by a number of ours.
    assert unique_identifiers(["a_2", "a", "a"]) == ["a_2", "a", "a_3"]
    # Macros are in capitals.
    assert unique_identifiers(["a", "A"]) == ["a", "A_2"]
    # Names of sizes, of what generated functions use, and of what a header begins with.
    sizes = ("", "_bytes")
    assert unique_identifiers(["a_bytes", "a"], sizes) == ["a_bytes", "a_2"]
    assert unique_identifiers(["given_input", "run"], sizes) == ["given_input_2", "x_run"]
    assert [identifier(name) for name in ("ibert_init", "body_b1_s8", "int8_t", "__x")] == [
        *("x_ibert_init", "x_body_b1_s8", "x_int8_t", "x___x")
    ]


def test_text_is_quoted_for_c() -> None:
    assert quoted('a "b" \\ ü ??/') == '"a \\"b\\" \\\\ \\303\\274 \\077\\077/"'
    assert comment("a */ b /* c ü") == "a * / b / * c ?"


def test_the_header_names_everything() -> None:
    interface = Interface(
        functions=(ShapeSpec("main_b1_s8", 1, 8), ShapeSpec("main_b2_s16", 2, 16)),
        inputs=(
            TensorSpec("input_ids", "int32", ("batch", "seq_len"), low=0, high=99),
            TensorSpec("pixel.values", "uint8", ("batch", 3, 4, 4), 0.5, 128, 0, 255),
        ),
        outputs=(TensorSpec("sentence embedding", "int16", ("batch", 24), 0.25),),
        pad_token_id=7,
        source_sha256="ab",
    )
    text = header_text(interface, Sizes(16, {(1, 8): 160, (2, 16): 320}, 1234), "A title */.")
    for line in (
        "/* A title * /. */",
        "#define IBERT_ABI_VERSION 3u",
        "#define IBERT_ALIGNMENT 16",
        "#define IBERT_WEIGHT_BYTES 1234",
        "#define IBERT_ARENA_BYTES 320",
        "#define IBERT_ARENA_BYTES_B1_S8 160",
        "#define IBERT_ARENA_BYTES_B2_S16 320",
        "#define IBERT_NUM_INPUTS 2",
        "#define IBERT_INPUT_INPUT_IDS 0 /* input_ids: int32 [batch, seq_len], 0 to 99 */",
        "#define IBERT_INPUT_PIXEL_VALUES 1 /* pixel.values: uint8 [batch, 3, 4, 4], scale 0.5, "
        "zero point 128, 0 to 255 */",
        "#define IBERT_OUTPUT_SENTENCE_EMBEDDING_ELEMENTS_B2_S16 48",
        "#define IBERT_PAD_TOKEN_ID 7",
        '#define IBERT_SOURCE_SHA256 "ab"',
        "int32_t ibert_run_b2_s16(",
        "    const uint8_t *pixel_values,",
        "    size_t pixel_values_bytes,",
        "    int16_t *sentence_embedding,",
        "    size_t sentence_embedding_bytes);",
    ):
        assert f"{line}\n" in text
    for code, name, meaning in STATUSES:
        assert f"    {name} = {code}" in text and f"/* {meaning} */" in text
    assert "float" not in text and "double" not in text.replace("exact in double", "")


def test_codes_of_results_never_change() -> None:
    assert [(code, name.removeprefix("IBERT_ERROR_")) for code, name, _ in STATUSES] == [
        (0, "IBERT_OK"),
        (1, "NULL_POINTER"),
        (2, "ABI_VERSION"),
        (3, "CONTEXT"),
        (4, "SHAPE"),
        (5, "ARENA_SIZE"),
        (6, "ARENA_ALIGNMENT"),
        (7, "INPUT_ALIGNMENT"),
        (8, "OUTPUT_ALIGNMENT"),
        (9, "INPUT_RANGE"),
        (10, "BUSY"),
        (11, "CANCELLED"),
        (12, "INDEX"),
        (13, "KERNEL"),
        (14, "MODEL"),
        (15, "BUFFER_SIZE"),
        (16, "TEXT"),
        (17, "WEIGHTS"),
        (18, "FETCH"),
    ]
