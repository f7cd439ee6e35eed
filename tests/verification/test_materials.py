"""Bills of materials: valid in CycloneDX's own reader, and of what the artefact says of itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.frontend.folder_files import stated_license
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime.library_file import read_metadata
from tests.arm.tools import board
from tests.encoder.small_encoders import tiny
from tests.extras import needs
from tests.fuzz.reader import write_files
from tests.fuzz.readers import READERS
from tests.snapshots import Messages


def bill(path: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    """What `ibert inspect --sbom` writes, checked against the schema."""
    needs("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    from ibert_tvm.cli import main

    output = path.parent / "bill.json"
    assert main(["inspect", str(path), "--sbom", str(output)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {output}\n")
    text = output.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


def hashes(path: Path) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]


def properties(document: dict) -> dict[str, str]:
    return {item["name"]: item["value"] for item in document["metadata"]["component"]["properties"]}


def test_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"source": "/models/tiny", "source_sha256": "a" * 64, "license": "apache-2.0"}
    library = tiny("classes", **source).build(tmp_path / "tiny.so")
    document = bill(library, capsys)
    assert document == bill(library, capsys)  # the same artefact, the same document
    component = document["metadata"]["component"]
    assert component["type"] == "machine-learning-model"
    assert component["hashes"] == hashes(library)
    licences = [{"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}]
    (ancestor,) = component["pedigree"]["ancestors"]
    assert component["licenses"] == ancestor["licenses"] == licences
    assert ancestor["name"] == "tiny" and ancestor["hashes"][0]["content"] == "a" * 64
    assert properties(document)["ibert_tvm:digest"] == read_metadata(library).digest
    versions = read_metadata(library).versions
    made = {item["name"]: item for item in document["components"]}
    assert made["apache-tvm"]["version"] == versions["tvm"]
    assert made["apache-tvm"]["scope"] == "required" and made["ibert-tvm"]["licenses"] == licences


@pytest.mark.parametrize("name", ["artefact", "package"])
def test_a_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "package":
        board("cortex-m4", run=False)
    write_files(tmp_path / "model", READERS[name].seeds()[0])
    document = bill(tmp_path / "model", capsys)
    component = document["metadata"]["component"]
    files = {item["name"]: item["hashes"] for item in component["components"]}
    assert files == {
        file.relative_to(tmp_path / "model").as_posix(): hashes(file)
        for file in (tmp_path / "model").rglob("*")
        if file.is_file()
    }
    assert "licenses" not in component  # its source states none
    if name == "package":
        assert {item["scope"] for item in document["components"]} == {"excluded"}
        assert properties(document)["ibert_tvm:compiler"] == "arm-none-eabi-gcc"


def test_a_model_to_import_has_no_bill(tmp_path: Path, messages: Messages) -> None:
    from ibert_tvm.cli.inspect import command
    from ibert_tvm.cli.options import HeadOptions

    (tmp_path / "model.onnx").write_bytes(b"")
    with messages.raises(UsageError):
        command(tmp_path / "model.onnx", source=HeadOptions(), sbom=tmp_path / "bill.json")


@pytest.mark.parametrize(
    ("card", "stated"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\nlicense: gpl-3.0\n", "mit"),
        ("---\nlicense: other\nlicense_name: 'some-terms'\n---\n", "some-terms"),
        ("---\nlanguage: en\n---\n", None),
        ("# A model\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_what_a_card_states(card: str, stated: str | None, tmp_path: Path) -> None:
    assert stated_license(tmp_path) is None
    (tmp_path / "README.md").write_text(card)
    assert stated_license(tmp_path) == stated


def test_the_licence_of_a_source_reaches_the_artefact(tmp_path: Path) -> None:
    import ibert_tvm as ibert
    from tests.encoder.small_encoders import save_bert

    folder = save_bert(tmp_path / "bert")
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    model = ibert.quantize(ibert.load(folder, verify=False), ["hello world"], seq_len=16)
    assert QuantizedModel.load(model.save(tmp_path / "bert.ibert")).info.license == "cc-by-4.0"
    assert model.quantization["versions"]["ibert_tvm"]
