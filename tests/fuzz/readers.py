"""The parsers of untrusted files, each with whole files to begin from and what they mean."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import operator
import random
import socket
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.cache import cached, version_of
from tests.fuzz.mutation import Files, damaged, damaged_bytes, damaged_json

Repair = Callable[[Files, random.Random], Files]


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes
    ----------
    seeds
        Whole files, as this project or the tools of others write them.
    read
        Reads a folder of them; returns what they mean, or raises an `IbertError`.
    repair
        Makes digests right again, so that the code behind them is reached; None where there are
        none. Three of four damaged files are repaired; the others have to be refused or to mean
        what they meant.
    damage
        Makes other files of whole ones.
    same
        Whether a meaning may come of files that meant another before they were damaged.
    """

    seeds: Callable[[], Sequence[Files]]
    read: Callable[[Path], object]
    repair: Repair | None = None
    damage: Callable[[Files, random.Random], Files] = damaged
    same: Callable[[Any, Any], bool] = operator.eq


def files_of(folder: Path) -> Files:
    """Contents of all files of a folder."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The inverse."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _arrays(arrays: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """A form of arrays that can be compared."""
    return [
        (name, str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in arrays.items()
    ]


def _built(name: str, build: Callable[[Path], None]) -> list[Files]:
    """What takes long to make: made once, in one folder for each seed."""
    with cached(f"fuzz-{name}", version_of(build)) as (place, work):
        if work is not None:
            build(work)
        folders = sorted(path for path in (work or place).iterdir() if path.is_dir())
        return [files_of(folder) for folder in folders]


# -- NAME.ibert ---------------------------------------------------------------------------------


def _manifest_again(files: Files, _rng: random.Random) -> Files:
    from ibert_tvm.common.integrity import MANIFEST, write_manifest

    with TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder, {name: files[name] for name in files if name != MANIFEST})
        write_manifest(folder)
        return files_of(folder)


@cache
def _artefacts() -> list[Files]:
    def build(work: Path) -> None:
        from tests.artefact.conftest import make_quantized
        from tests.rpc.small_model import small_model

        make_quantized().save(work / "a")
        small_model().save(work / "b")

    return _built("artefacts", build)


def _read_artefact(folder: Path) -> object:
    from ibert_tvm.model.artefact import QuantizedModel
    from ibert_tvm.model.tokenization import Tokenizer
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges

    model = QuantizedModel.load(folder)
    if model.tokenizer:
        Tokenizer(model.tokenizer).encode(["hello world", ("a", "b")], 16)
    report = analyse_ranges(model.program, model.parameters)
    return (
        (repr(model.program), _arrays(model.parameters), model.info, model.tokenizer),
        json.dumps(model.quantization, sort_keys=True),
        report.max_seq_len,
    )


def _compile_artefact(folder: Path) -> object:
    import ibert_tvm as ibert
    from ibert_tvm.model.artefact import QuantizedModel

    model = QuantizedModel.load(folder)
    compiled = ibert.compile(model, target="host", shapes=[(1, 8)], runtime="none")
    compiled.export(folder / "model.so")
    return hashlib.sha256((folder / "model.h").read_bytes()).hexdigest()


# -- libraries ----------------------------------------------------------------------------------


@cache
def _libraries() -> list[Files]:
    def build(work: Path) -> None:
        import ibert_tvm as ibert
        from tests.rpc.small_model import small_model
        from tests.runtime.conftest import TinyModel

        (work / "a").mkdir()
        TinyModel().build(work / "a" / "model.so")
        (work / "b").mkdir()
        plain = ibert.compile(small_model(), target="host", shapes=[(1, 8)], runtime="none")
        plain.export(work / "b" / "model.so")
        (work / "b" / "model.h").unlink()

    return _built("libraries", build)


def _sections(content: bytes) -> dict[str, tuple[int, int]]:
    from elftools.elf.elffile import ELFFile

    return {
        section.name: (section["sh_offset"], section["sh_size"])
        for section in ELFFile(io.BytesIO(content)).iter_sections()
    }


def _damage_library(files: Files, rng: random.Random) -> Files:
    """Any byte, the headers, or the metadata, which stay as long as they were."""
    content = files["model.so"]
    kind = rng.random()
    if kind < 0.35:
        return {"model.so": damaged_bytes(content, rng)}
    if kind < 0.6:
        return {"model.so": damaged_bytes(content[:512], rng)[:512].ljust(512) + content[512:]}
    offset, size = _sections(content)[".ibert.metadata"]
    old = content[offset : offset + size].rstrip(b"\0 ")
    if kind < 0.9:
        text = damaged_json(old, rng)
    else:
        document = json.loads(old)
        inflated = bytes(2**27) if kind < 0.92 else damaged_bytes(b"[PAD]\n[UNK]\n", rng)
        name = rng.choice(("vocab.txt", "tokenizer.json", "../vocab.txt"))
        document["tokenizer"] = {name: base64.b64encode(zlib.compress(inflated)).decode()}
        text = json.dumps(document).encode()
    if len(text) > size:
        text = damaged_bytes(old, rng)[:size]
    return {"model.so": content[:offset] + text.ljust(size) + content[offset + size :]}


def _seal_again(files: Files, _rng: random.Random) -> Files:
    """One part is enough of a seal; where it began stays, if that can be found."""
    from ibert_tvm.common.file_seal import Part, append_seal

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.so"
        file.write_bytes(files["model.so"])
        append_seal(file, [Part("all", 0, file.stat().st_size)])
        return {"model.so": file.read_bytes()}


def _read_library(folder: Path) -> object:
    from ibert_tvm.model.tokenization import Tokenizer
    from ibert_tvm.runtime.library import tokenizer_files
    from ibert_tvm.runtime.library_file import read_metadata, read_weights

    file = folder / "model.so"
    metadata = read_metadata(file)
    weights = read_weights(file, 0, min(metadata.weight_bytes, 2**20))
    tokens = None
    if metadata.tokenizer:
        tokens = (
            Tokenizer(tokenizer_files(metadata)).encode(["hello big world"], 8).input_ids.tolist()
        )
    # What follows the file is its path and its own size.
    stated = {key: value for key, value in vars(metadata).items() if key != "path"}
    return repr(stated), hashlib.sha256(weights).hexdigest(), tokens


def _seal_library(folder: Path) -> object:
    from ibert_tvm.common.file_seal import sealed_bytes
    from ibert_tvm.targets.seal import seal_library

    file = folder / "model.so"
    size = file.stat().st_size
    seal_library(file)
    assert sealed_bytes(file) == size
    return size


# -- packages and databases ---------------------------------------------------------------------


@cache
def _packages() -> list[Files]:
    def build(work: Path) -> None:
        import ibert_tvm as ibert
        from tests.rpc.small_model import small_model

        compiled = ibert.compile(small_model(), target="cortex-m4", shapes=[(1, 8)])
        compiled.export(work / "a")

    return _built("packages", build)


def _read_package(folder: Path) -> object:
    from ibert_tvm.targets.bare_metal import read_package

    return json.dumps(read_package(folder), sort_keys=True)


@cache
def _databases() -> list[Files]:
    def build(work: Path) -> None:
        from ibert_tvm.schedules.tiles import LinearTile
        from tests.tuning.test_database import filled, trial

        failed = trial(LinearTile(2, 4, unroll=2), (), error="wrong result")
        filled(work / "a", trial(), failed, trial(LinearTile(8, 1), (3.0,)))

    return _built("databases", build)


def _digests_again(files: Files, _rng: random.Random) -> Files:
    from ibert_tvm.common.integrity import sealed

    def again(text: bytes) -> bytes:
        try:
            document = json.loads(text)
            return json.dumps(sealed(document)).encode() if isinstance(document, dict) else text
        except (ValueError, RecursionError):
            return text

    result = dict(files)
    if "database.json" in result:
        result["database.json"] = again(result["database.json"])
    if "trials.jsonl" in result:
        result["trials.jsonl"] = b"\n".join(map(again, result["trials.jsonl"].split(b"\n")))
    return result


def _read_database(folder: Path) -> object:
    from ibert_tvm.schedules.tuning import TuningDatabase
    from ibert_tvm.targets import get_target

    database = TuningDatabase.open(folder, get_target("x86-64"))
    database.best("0" * 16)
    return {repr(trial) for trial in database.trials}


def _no_more(meaning: set[str], before: set[str]) -> bool:
    """A measurement may be lost with its line, as one that was not written to its end."""
    return meaning <= before


# -- models of others ---------------------------------------------------------------------------


@cache
def _model_folders() -> list[Files]:
    def build(work: Path) -> None:
        import torch

        from tests.frontend import sentence_folders as folders
        from tests.ibert_checkpoint import checkpoints

        torch.manual_seed(0)
        folders.save(
            work / "a", [folders.TRANSFORMER, folders.pooling("mean"), folders.dense(32, 8)]
        )
        checkpoints.save(checkpoints.make_model("none"), work / "b")
        # Weights in several files, with an index of them, and a tokenizer.
        model = folders.make("bert", "none", num_hidden_layers=1).eval()
        model.save_pretrained(work / "c", max_shard_size="20KB")
        write_files(work / "c", _tokenizers()[0])

    return _built("folders", build)


def _read_folder(folder: Path) -> object:
    from ibert_tvm.frontend.hf_folder import HfFolder
    from ibert_tvm.model.tokenization import tokenizer_files

    read = HfFolder.read(folder)
    _ = read.pipeline, read.pooling
    tokenizer_files(folder)
    return repr(read.provenance(read.default_head))


def _import_folder(folder: Path) -> object:
    import ibert_tvm as ibert

    model = ibert.load(folder)
    return model.info


@cache
def _onnx_models() -> list[Files]:
    def build(work: Path) -> None:
        from tests.frontend.qdq import encoder

        for name, quantised in (("a", False), ("b", True)):
            (work / name).mkdir()
            model = encoder.encoder(layers=1)
            if quantised:
                model = encoder.quantize(work / name, model)
                for file in (work / name).iterdir():
                    file.unlink()
            (work / name / "model.onnx").write_bytes(model.SerializeToString())

    return _built("onnx", build)


def _import_onnx(folder: Path) -> object:
    import ibert_tvm as ibert

    return ibert.load(folder / "model.onnx").info


# -- tokens, texts, arrays ----------------------------------------------------------------------


def _tokenizers() -> list[Files]:
    from tests.runtime.conftest import VOCABULARY

    config = {"do_lower_case": True, "pad_token": "[PAD]", "model_max_length": 16}
    words = {
        "vocab.txt": "\n".join(VOCABULARY).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast = Tokenizer(models.BPE({"<pad>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel()
    pairs = {
        "tokenizer.json": fast.to_str().encode(),
        "tokenizer_config.json": b'{"pad_token": "<pad>"}',
    }
    merges = {
        "vocab.json": b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6}',
        "merges.txt": b"#version: 0.2\na b\n",
        "tokenizer_config.json": b"{}",
    }
    from tokenizers import Regex, normalizers, processors

    fast.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" +"), " "), normalizers.Prepend("a")]
    )
    fast.post_processor = processors.TemplateProcessing(
        single="<pad> $A", pair="<pad> $A b $B:1", special_tokens=[("<pad>", 0), ("b", 2)]
    )
    parts = {**pairs, "tokenizer.json": fast.to_str().encode()}
    return [words, pairs, merges, parts]


def _tokenize(folder: Path) -> object:
    from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files

    tokenizer = Tokenizer(tokenizer_files(folder))
    tokens = tokenizer.encode(["hello small world ab", ("ab", "b")], 12)
    tokenizer.windows(("ab b", "hello " * 20), 12, 2)
    return tokens.input_ids.tolist(), tokenizer.vocab_size


def _texts() -> list[Files]:
    return [{"texts.txt": "hello\nworld \u00e9\n\n  big \r\nsmall\n".encode()}]


def _read_texts(folder: Path) -> object:
    from ibert_tvm.texts import read_texts

    return read_texts("--texts", folder / "texts.txt")


def _npz_files() -> list[Files]:
    ids = np.arange(12).reshape(3, 4)
    result = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, input_ids=ids, attention_mask=np.ones_like(ids))
        result.append({"inputs.npz": stream.getvalue()})
    return result


def _read_npz(folder: Path) -> object:
    from ibert_tvm.cli.run import _read_inputs
    from ibert_tvm.common.errors import IbertError
    from ibert_tvm.quantization.batch_file import read_batches
    from ibert_tvm.quantization.batches import batches_of_arrays
    from tests.runtime.conftest import TinyModel

    file = folder / "inputs.npz"
    arrays = None
    try:
        batches_of_arrays(read_batches(file), TinyModel().info)
    except IbertError as error:
        str(error)
        arrays = _read_inputs(file)
    return arrays and _arrays(arrays)


# -- the network --------------------------------------------------------------------------------


def _answers() -> list[Files]:
    server = {"key": "server:rpi4", "addr": ["127.0.0.1", 9090]}
    summary = [0, {"queue_info": {"rpi4": {"free": 1, "pending": 0}}, "server_info": [server]}]
    body = json.dumps(summary).encode()
    board = b"machine aarch64\nprocessors 4\ncapabilities 887 10\ncpuinfo\nFeatures : fp asimd\n"
    return [{"tracker.json": body, "board": board}]


def _listen(folder: Path) -> object:
    """Ask a tracker that answers what the file says, and read what a board says of itself."""
    from ibert_tvm.targets.rpc.address import Address, find_server
    from ibert_tvm.targets.rpc.processor import BoardDescription

    body = (folder / "tracker.json").read_bytes() if (folder / "tracker.json").exists() else b""
    magic = (0x2F271).to_bytes(4, "little")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4)
                connection.sendall(magic)
                connection.recv(100)
                connection.sendall(len(body).to_bytes(4, "little") + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = find_server(Address("127.0.0.1", server.getsockname()[1], "rpi4"), 2)
        thread.join()
    board = (folder / "board").read_bytes() if (folder / "board").exists() else b""
    return found, BoardDescription.parse(board.decode("utf-8", "replace"))


READERS: dict[str, Reader] = {
    "artefact": Reader(_artefacts, _read_artefact, _manifest_again),
    "compile": Reader(_artefacts, _compile_artefact, _manifest_again),
    "library": Reader(_libraries, _read_library, _seal_again, _damage_library),
    "seal": Reader(_libraries, _seal_library, damage=_damage_library),
    "package": Reader(_packages, _read_package, _manifest_again),
    "database": Reader(_databases, _read_database, _digests_again, same=_no_more),
    "folder": Reader(_model_folders, _read_folder),
    "import": Reader(_model_folders, _import_folder),
    "onnx": Reader(_onnx_models, _import_onnx),
    "tokenizer": Reader(_tokenizers, _tokenize),
    "texts": Reader(_texts, _read_texts),
    "npz": Reader(_npz_files, _read_npz),
    "network": Reader(_answers, _listen),
}
"""By the name of what is read."""
