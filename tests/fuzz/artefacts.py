"""Readers of what this project writes: models, libraries, packages, databases, signatures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.mutation import Files, damaged, damaged_bytes, damaged_json
from tests.fuzz.reader import Reader, arrays_of, built, files_of, write_files

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

    return built("artefacts", build)


def _read_artefact(folder: Path) -> object:
    from ibert_tvm.model.artefact import QuantizedModel
    from ibert_tvm.model.tokenization import Tokenizer
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges

    model = QuantizedModel.load(folder)
    if model.tokenizer:
        Tokenizer(model.tokenizer).encode(["hello world", ("a", "b")], 16)
    report = analyse_ranges(model.program, model.parameters)
    return (
        (repr(model.program), arrays_of(model.parameters), model.info, model.tokenizer),
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

    return built("saved", build)


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

    return built("libraries", build)


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

    return built("packages", build)


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

    return built("databases", build)


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
    from ibert_tvm.verification.artefacts import Compiled, CompiledLibrary, CompiledPackage

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

    return built("signatures", build)


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
    from cryptography.exceptions import UnsupportedAlgorithm
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UnsupportedAlgorithm):
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

    return built("scales", build)


def _read_scales(folder: Path) -> object:
    from ibert_tvm.model.trained_scales import FILE, read_scales

    return json.dumps(read_scales(folder / FILE).to_json(), sort_keys=True)


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
}
