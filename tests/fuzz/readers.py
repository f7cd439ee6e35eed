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


@cache
def _saved_encoders() -> list[Files]:
    def build(work: Path) -> None:
        from ibert_tvm.encoder.saved import Settings, write_saved
        from tests.encoder.small_encoders import tiny

        library = tiny("embedding").build(work / "model.so")
        settings = Settings(16, {"query": "a: "}, "query", "dot", 2)
        write_saved(work / "a", library, settings, None, None, "card")

    return _built("saved", build)


def _damage_settings(files: Files, rng: random.Random) -> Files:
    return damaged(files, rng, ["model.so"])


def _read_saved(folder: Path) -> object:
    """Its settings; the library, which is a program, has a reader of its own."""
    from ibert_tvm.encoder import saved

    return repr(saved._read(folder))


# -- libraries ----------------------------------------------------------------------------------


@cache
def _libraries() -> list[Files]:
    def build(work: Path) -> None:
        import ibert_tvm as ibert
        from tests.encoder.small_encoders import tiny
        from tests.rpc.small_model import small_model
        from tests.runtime.conftest import TinyModel

        (work / "a").mkdir()
        TinyModel().build(work / "a" / "model.so")
        (work / "c").mkdir()
        known = {"classes": "sigmoid", "thresholds": {"calm": 0.5}, "pairs": "tanh"}
        settings = {"post_processing": known, "prompts": {"query": "a "}}
        tiny("classes", **settings).build(work / "c" / "model.so")
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

    return {
        name: b"\n".join(map(again, content.split(b"\n"))) if name.endswith("l") else again(content)
        for name, content in files.items()
    }


def _read_database(folder: Path) -> object:
    from ibert_tvm.schedules.tuning import TuningDatabase
    from ibert_tvm.targets import get_target

    database = TuningDatabase.open(folder, get_target("x86-64"))
    database.best("0" * 16)
    return {repr(trial) for trial in database.trials}


def _no_more(meaning: set[str], before: set[str]) -> bool:
    """A measurement may be lost with its line, as one that was not written to its end."""
    return meaning <= before


def _compiled() -> list[Files]:
    return [*_libraries(), *_packages()]


def _damage_compiled(files: Files, rng: random.Random) -> Files:
    return (_damage_library if "model.so" in files else damaged)(files, rng)


def _repair_compiled(files: Files, rng: random.Random) -> Files:
    return (_seal_again if "model.so" in files else _manifest_again)(files, rng)


def _audit(folder: Path) -> object:
    """What `ibert verify` looks at in an artefact, before it compiles its model again."""
    from ibert_tvm.verification.compiled import Compiled, CompiledLibrary, CompiledPackage

    with TemporaryDirectory() as scratch:
        compiled: Compiled
        if (folder / "model.so").exists():
            compiled = CompiledLibrary(folder / "model.so", False, None, None)
        else:
            compiled = CompiledPackage(folder, False, Path(scratch))
        checks = [(check.name, check.findings) for check in compiled.code()]
        return checks, compiled.shapes, compiled.tokenizer()


# -- signatures, certificates, trained scales -----------------------------------------------------


@cache
def _signatures() -> list[Files]:
    def build(work: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        from ibert_tvm.verification.signature import sign
        from tests.artefact.conftest import make_quantized
        from tests.test_signature import write_keys

        (work / "a").mkdir()
        write_keys(work, "key", ec.generate_private_key(ec.SECP256R1()))
        make_quantized().save(work / "a" / "model.ibert")
        sign(work / "a" / "model.ibert", work / "key.pem")
        for file in work.glob("key.*"):
            file.rename(work / "a" / file.name)

    return _built("signatures", build)


_BUNDLE = "model.ibert/signature.json"


def _damage_signature(files: Files, rng: random.Random) -> Files:
    """The bundle, what it signs, or a key; the artefact has a reader of its own."""
    try:
        bundle = json.loads(files[_BUNDLE])
        payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    except (ValueError, KeyError, TypeError, RecursionError):  # what was damaged before
        payload = None
    if payload is None or rng.random() < 0.5:
        artefact = [name for name in files if name.startswith("model") and name != _BUNDLE]
        return damaged(files, rng, artefact)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(damaged_json(payload, rng)).decode()
    return {**files, _BUNDLE: json.dumps(bundle).encode()}


def _sign_again(files: Files, _rng: random.Random) -> Files:
    """With the key that signed it before, whatever it is that is signed."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from ibert_tvm.verification.signature import _message

    try:
        bundle = json.loads(files[_BUNDLE])
        payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
        key: Any = serialization.load_pem_private_key(files["key.pem"], None)
        signature = key.sign(_message(payload), ec.ECDSA(hashes.SHA256()))
        signatures = [{"sig": base64.b64encode(signature).decode(), "keyid": ""}]
        bundle["dsseEnvelope"]["signatures"] = signatures
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files
    return {**files, _BUNDLE: json.dumps(bundle).encode()}


def _check_signature(folder: Path) -> object:
    from ibert_tvm.verification.signature import check_signature, sign

    name = check_signature(folder / "model.ibert", folder / "key.pub")
    sign(folder / "model.ibert", folder / "key.pem")
    return name


def _certificates() -> list[Files]:
    from ibert_tvm.verification.certificate import Certificate, Check

    facts = {"inputs": 8, "bits": {"a": {"low": -3, "high": 9, "type": "int8", "headroom": 1}}}
    checks = (Check("digests", facts), Check("same bits", {}, ("wrong",)), Check("x", {}, (), "y"))
    certificate = Certificate("model.so", "0" * 64, "1" * 64, checks)
    return [{"verify.json": json.dumps(certificate.to_json()).encode()}]


def _read_certificate(folder: Path) -> object:
    from ibert_tvm.verification.certificate import read_certificate

    return json.dumps(read_certificate(folder / "verify.json"), sort_keys=True)


@cache
def _trained_scales() -> list[Files]:
    def build(work: Path) -> None:
        from tests.train.test_trained_scales import scales

        for name in ("bert", "bert-default", "bert-paper"):
            (work / name).mkdir()
            scales(name).save(work / name)

    return _built("scales", build)


def _read_scales(folder: Path) -> object:
    from ibert_tvm.model.trained_scales import FILE, read_scales

    return json.dumps(read_scales(folder / FILE).to_json(), sort_keys=True)


# -- models of others ---------------------------------------------------------------------------


@cache
def _model_folders() -> list[Files]:
    def build(work: Path) -> None:
        import torch

        from tests.encoder.small_encoders import save_bert
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
        # Everything that sentence-transformers is told about a model.
        save_bert(work / "d")
        settings = {"prompts": {"query": "a: ", "document": ""}, "default_prompt_name": "query"}
        settings |= {"similarity_fn_name": "dot", "truncate_dim": 16}
        write_files(
            work / "d", {"config_sentence_transformers.json": json.dumps(settings).encode()}
        )
        # A cross-encoder, its weights pickled.
        model = folders.make("bert", "sequence_classification", num_hidden_layers=1, num_labels=1)
        function = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
        model.config.sentence_transformers = function
        model.config.save_pretrained(work / "e")
        torch.save(model.state_dict(), work / "e" / "pytorch_model.bin")

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


@cache
def _source_tokenizers() -> list[Files]:
    def build(work: Path) -> None:
        from tests.frontend import tokenizer_folders as folders

        settings: dict[str, Any] = {"model_max_length": 16, "do_lower_case": False}
        added = {"content": "[NEW]", "special": True, "lstrip": True, "normalized": False}
        folders.words(work / "a", {**settings, "added_tokens_decoder": {"11": added}})
        folders.pairs_of_bytes(work / "b", {**settings, "add_prefix_space": True})
        folders.pairs_of_bytes(work / "c", {**settings, "pad_token": "<pad>"}, template="<s> $A")
        folders.pieces(work / "d", settings)
        special = {"mask_token": {"content": "[MASK]", "lstrip": True}, "unk_token": "[UNK]"}
        sentence = {"max_seq_length": 12, "do_lower_case": True}
        write_files(
            work / "a",
            {
                "special_tokens_map.json": json.dumps(special).encode(),
                "sentence_bert_config.json": json.dumps(sentence).encode(),
                "modules.json": json.dumps(
                    [{"path": "", "type": "sentence_transformers.models.Transformer"}]
                ).encode(),
            },
        )

    return _built("source-tokenizers", build)


def _read_source_tokenizer(folder: Path) -> object:
    from ibert_tvm.frontend.source_tokenizer import source_tokenizer
    from ibert_tvm.model.tokenization import Tokenizer

    files = source_tokenizer(folder)
    return files and Tokenizer(files).encode(["the cats sat", ("a", "C")], 8).input_ids.tolist()


def _texts() -> list[Files]:
    return [{"texts.txt": "hello\nworld \u00e9\n\n  big \r\nsmall\n".encode()}]


def _read_texts(folder: Path) -> object:
    from ibert_tvm.texts import read_texts

    return read_texts("--texts", folder / "texts.txt")


def _data() -> list[Files]:
    """A folder by the name of a task, with the file or the folder that it reads."""
    from ibert_tvm.tasks.glue import FORMATS
    from tests.tasks.test_readers import CORPUS, GLUE

    answers = [{"text": "cat", "answer_start": 4}]
    questions = [{"id": "1", "question": "Who?", "answers": answers, "is_impossible": False}]
    paragraphs = [{"context": "The cat.", "qas": questions}]
    files = {f"{name}/{FORMATS[name].file}": text for name, text in GLUE.items()}
    files |= {
        "classification/a.csv": 'label,text\nx,"a, ""b""\nc"\ny,d\n',
        "sts/a.tsv": "sentence1\tsentence2\tscore\na b\tc\t4.5\n",
        "token-classification/a.conll": "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n",
        "squad/a.json": json.dumps({"data": [{"paragraphs": paragraphs}]}),
    }
    retrieval = {
        "corpus.jsonl": CORPUS,
        "queries.jsonl": '{"_id": "q", "text": "x"}\n{"_id": "r", "text": "y"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\t2\t1\n",
    }
    folder = {f"retrieval/{name}": text.encode() for name, text in retrieval.items()}
    return [folder, *({name: text.encode()} for name, text in files.items())]


def _read_data(folder: Path) -> object:
    from ibert_tvm.tasks.catalogue import TASKS, Options

    found = []
    for place in sorted(folder.iterdir()):
        files = sorted(place.iterdir())
        path = place if place.name == "retrieval" or not files else files[0]
        found.append(repr(TASKS[place.name].read(path, Options())))
    return found


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


_REQUESTS: Mapping[str, object] = {
    "v1/embeddings": {"input": ["hello world", "big"], "encoding_format": "base64", "model": "e"},
    "v1/embeddings/ids": {"input": [[2, 4, 3], [2, 3]], "dimensions": 3, "truncate": True},
    "v2/rerank": {"query": "big", "documents": ["hello", {"text": "small"}], "top_n": 1},
    "rerank": {
        "query": "big",
        "documents": ["hello"],
        "return_documents": True,
        "function": "none",
    },
    "classify": {"inputs": ["hello", ["big", "small"]], "top_k": 2, "threshold": 0.5},
    "reload": {"model": "e"},
}


def _requests() -> list[Files]:
    return [{f"{path}.json": json.dumps(body).encode()} for path, body in _REQUESTS.items()]


@cache
def _server() -> Callable[[str, bytes], tuple[int, bytes]]:
    """A server in this process, without its sockets: what it answers to a body at a path."""
    import asyncio

    import httpx

    from ibert_tvm import Encoder
    from ibert_tvm.serve.application import create_application
    from tests.encoder.small_encoders import tiny

    place = TemporaryDirectory()  # lives as long as what loads from it
    libraries = {
        kind[0]: tiny(kind).build(Path(place.name) / f"{kind}.so")
        for kind in ("embedding", "score", "classes")
    }

    def load(name: str) -> Encoder:
        return Encoder(Path(place.name) / libraries[name].name)

    application = create_application({n: load(n) for n in libraries}, None, "key", load=load)
    transport = httpx.ASGITransport(application, raise_app_exceptions=True)
    client = httpx.AsyncClient(transport=transport, base_url="http://x")
    loop = asyncio.new_event_loop()
    headers = {"content-type": "application/json", "authorization": "Bearer key"}

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        given = loop.run_until_complete(client.post(path, content=body, headers=headers))
        return given.status_code, given.content

    return answer


def _ask(folder: Path) -> object:
    found = []
    for name, body in files_of(folder).items():
        path = name.removesuffix(".json").removesuffix("/ids")
        status, content = _server()(f"/{path}", body)
        assert status < 500, (status, content)
        found.append(status)
    return found


READERS: dict[str, Reader] = {
    "artefact": Reader(_artefacts, _read_artefact, _manifest_again),
    "compile": Reader(_artefacts, _compile_artefact, _manifest_again),
    "saved-encoder": Reader(_saved_encoders, _read_saved, _manifest_again, _damage_settings),
    "library": Reader(_libraries, _read_library, _seal_again, _damage_library),
    "seal": Reader(_libraries, _seal_library, damage=_damage_library),
    "audit": Reader(_compiled, _audit, _repair_compiled, _damage_compiled),
    "package": Reader(_packages, _read_package, _manifest_again),
    "database": Reader(_databases, _read_database, _digests_again, same=_no_more),
    "signature": Reader(_signatures, _check_signature, _sign_again, _damage_signature),
    "certificate": Reader(_certificates, _read_certificate, _digests_again),
    "scales": Reader(_trained_scales, _read_scales),
    "folder": Reader(_model_folders, _read_folder),
    "import": Reader(_model_folders, _import_folder),
    "onnx": Reader(_onnx_models, _import_onnx),
    "tokenizer": Reader(_tokenizers, _tokenize),
    "source-tokenizer": Reader(_source_tokenizers, _read_source_tokenizer),
    "data": Reader(_data, _read_data),
    "requests": Reader(_requests, _ask),
    "texts": Reader(_texts, _read_texts),
    "npz": Reader(_npz_files, _read_npz),
    "network": Reader(_answers, _listen),
}
"""By the name of what is read."""
