"""Models that packages carry, as folders."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from benchmarks.packaged_models import e5_folder, mpnet_folder

HIDDEN, WIDE, PIECES, POSITIONS = 32, 64, ["<s>", "<pad>", "</s>", "<unk>", "▁a", "b"], 4


def packed_model():
    """A file of one layer, and its matrices as float numbers by name."""
    random = np.random.default_rng(0)
    tensors, expected = {}, {}
    matrices = {name: (HIDDEN, HIDDEN) for name in ("l0.q.w", "l0.k.w", "l0.v.w", "l0.ao.w")}
    matrices |= {"l0.fi.w": (WIDE, HIDDEN), "l0.fo.w": (HIDDEN, WIDE)}
    for name, (rows, columns) in {**matrices, "emb.word": (len(PIECES), HIDDEN)}.items():
        integers = random.integers(-8, 8, (rows * columns // 32, 32))
        scales = random.uniform(0.1, 1, (len(integers), 1)).astype(np.float16)
        low, high = integers[:, :16] + 8, integers[:, 16:] + 8
        packed = (low | high << 4).astype(np.uint8)
        tensors[name] = b"".join(
            scale.tobytes() + row.tobytes() for scale, row in zip(scales, packed, strict=True)
        )
        expected[name] = (integers * scales.astype(np.float32)).reshape(rows, columns)
    sizes = {f"l0.{name}.b": rows for name, rows in zip("qkv", (HIDDEN,) * 3, strict=True)}
    sizes |= {"l0.ao.b": HIDDEN, "l0.fi.b": WIDE, "l0.fo.b": HIDDEN}
    sizes |= {f"{norm}.{part}": HIDDEN for norm in ("l0.aln", "l0.oln") for part in "wb"}
    sizes |= {"emb.ln.w": HIDDEN, "emb.ln.b": HIDDEN}
    sizes |= {"emb.pos": POSITIONS * HIDDEN, "emb.type": HIDDEN}
    for name, size in sizes.items():
        expected[name] = random.normal(size=size).astype(np.float32)
        tensors[name] = expected[name].tobytes()

    text = [piece.encode() for piece in PIECES]
    head = struct.pack("<4sI", b"E5S1", 1)
    head += struct.pack("<7ifi", HIDDEN, 1, 2, WIDE, len(PIECES), POSITIONS, 1, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, text)))
    head += np.cumsum([0, *map(len, text)]).astype("<u4").tobytes()
    head += np.array([0, 0, 0, 0, -1, -2], "<f4").tobytes() + b"".join(text)
    head += struct.pack("<iI", 1, 5) + b"\x00" * 5 + struct.pack("<i", len(tensors))
    entry = 2 + 1 + 4 + 8 + 8
    place = len(head) + sum(entry + len(name) for name in tensors)
    directory = b""
    for name, data in tensors.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", 0, len(data), place, len(data))
        place += len(data)
    return head + directory + b"".join(tensors.values()), expected


def test_blocks_of_four_bits_become_the_numbers_that_they_stand_for(tmp_path):
    data, expected = packed_model()
    e5_folder(data, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for short, name in {
        "emb.word": "embeddings.word_embeddings.weight",
        "l0.q.w": "encoder.layer.0.attention.self.query.weight",
        "l0.fo.w": "encoder.layer.0.output.dense.weight",
        "l0.fi.b": "encoder.layer.0.intermediate.dense.bias",
        "l0.oln.w": "encoder.layer.0.output.LayerNorm.weight",
    }.items():
        np.testing.assert_array_equal(weights[name], expected[short])
    assert len(weights) == 5 + 16
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["pad_token_id"]) == (
        HIDDEN,
        *(1, 1),
    )
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("a ab").tokens == ["<s>", "▁a", "▁a", "b", "</s>"]
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["tokenizer_class"], settings["cls_token"]) == (
        "PreTrainedTokenizerFast",
        "<s>",
    )


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="magic b'E5S2' instead of b'E5S1'"):
        e5_folder(b"E5S2" + bytes(100), tmp_path)


def test_pieces_of_an_archive_become_a_folder_and_nothing_beside_it(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in (
            *("all/config.json", "all/modules.json", "all/1_Pooling/config.json"),
            *("all/../../out.json", "all/onnx/model.onnx", "all/train.py", "other/config.txt"),
        ):
            archive.writestr(name, "{}")
    data = stream.getvalue()
    folder = tmp_path / "models" / "all"
    mpnet_folder([data[:100], data[100:]], folder)
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == [
        "models/all/1_Pooling/config.json",
        "models/all/config.json",
        "models/all/modules.json",
    ]
