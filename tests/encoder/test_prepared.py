"""Libraries that an encoder makes of models: once, for everything that they depend on."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import LibraryError, UsageError
from ibert_tvm.encoder import prepared
from ibert_tvm.encoder.encoder import _exchange
from ibert_tvm.encoder.prepared import Options, cache_folder, prepared_library
from ibert_tvm.frontend import ModelSourceError
from ibert_tvm.frontend.hf_folder import HfFolder
from tests.encoder.small_encoders import bert, save_bert
from tests.processes import wait_until
from tests.snapshots import Messages


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ibert_tvm"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Something that has files like a model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "notes.md").write_text("read me")
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every library that is made, slowly, of what is no model."""
    libraries: list[Path] = []

    def make(_model: Path, _options: Options, library: Path) -> None:
        libraries.append(library)
        time.sleep(0.1)
        library.write_bytes(b"a library")

    def read(library: Path) -> None:
        if not library.is_file() or library.read_bytes() != b"a library":
            raise LibraryError("missing or damaged")

    monkeypatch.setattr(prepared, "_make", make)
    monkeypatch.setattr(prepared, "read_metadata", read)
    return libraries


def test_it_is_made_once_for_each_content_and_option(model: Path, made: list[Path]) -> None:
    first = prepared_library(model, Options())
    (model / "notes.md").write_text("no part of the model")
    assert prepared_library(model, Options()) == first
    assert len(made) == 1
    others = [prepared_library(model, Options(max_seq_length=64))]
    others.append(prepared_library(model, Options(head="none")))
    others.append(prepared_library(model, Options(target="x86-64")))
    (model / "config.json").write_text('{"another": 1}')
    others.append(prepared_library(model, Options()))
    (model / "config.json").rename(model / "tokenizer.json")
    others.append(prepared_library(model, Options()))
    assert len({first, *others}) == 6 == len(made)


def test_weights_in_a_linked_folder_count(model: Path, made: list[Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_bytes(b"weights")
    (elsewhere / "back").symlink_to(model)  # a circle
    (model / "0_Transformer").symlink_to(elsewhere)
    first = prepared_library(model, Options())
    (elsewhere / "model.safetensors").write_bytes(b"other weights")
    assert prepared_library(model, Options()) != first


def test_a_damaged_library_is_made_again(model: Path, made: list[Path]) -> None:
    library = prepared_library(model, Options())
    library.write_bytes(b"truncated")
    assert prepared_library(model, Options()) == library
    assert (made, library.read_bytes()) == ([library, library], b"a library")


def test_another_version_makes_it_again(
    model: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_library(model, Options())
    monkeypatch.setattr(prepared, "_product", lambda: "other sources")
    prepared_library(model, Options())
    assert len(set(made)) == 2


def test_the_sources_of_all_packages_count() -> None:
    assert len(prepared._product()) == 64
    found = {Path(place).name for name in prepared._PACKAGES for place in _places(name)}
    assert found == {"ibert_tvm", "relay_passes", "schedules", "targets"}


def _places(name: str) -> list[str]:
    spec = prepared.find_spec(name)
    assert spec is not None
    return list(spec.submodule_search_locations or ())


def test_two_at_once_make_it_once(model: Path, made: list[Path]) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(prepared_library(model, Options())))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results == made * 3


def test_where_it_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "ibert_tvm"


def test_a_folder_that_others_write_to_is_not_trusted(messages: Messages, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with messages.raises(UsageError):
        cache_folder()


def test_a_head_cannot_be_chosen_of_what_was_quantised(messages: Messages, library: Path) -> None:
    with messages.raises(UsageError):
        Encoder(library, head="none")


def test_an_entry_of_the_hubs_cache_is_its_snapshot(messages: Messages, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="making a model folder needs torch")
    entry = tmp_path / "models--some--bert"
    (entry / "snapshots").mkdir(parents=True)
    save_bert(entry / "snapshots" / "12ab")
    assert HfFolder.read(entry).path == entry / "snapshots" / "12ab"
    save_bert(entry / "snapshots" / "34cd")
    with messages.raises(ModelSourceError):
        HfFolder.read(entry)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("34cd\n")
    assert HfFolder.read(entry).path == entry / "snapshots" / "34cd"
    (entry / "refs" / "main").write_text("../../elsewhere")
    with pytest.raises(ModelSourceError):
        HfFolder.read(entry)


_USE = """
import sys
import numpy as np
from ibert_tvm import Encoder
np.save(sys.argv[2], Encoder(sys.argv[1], target="x86-64").encode(["hello world", "big"]))
"""


@pytest.mark.slow
def test_two_processes_that_want_one_model_make_one_library(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("torch", reason="importing a model needs torch")
    folder = save_bert(tmp_path / "model")
    files = [tmp_path / f"{name}.npy" for name in "ab"]
    processes = [
        subprocess.Popen([sys.executable, "-c", _USE, folder, file], stderr=subprocess.PIPE)
        for file in files
    ]
    said = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert sum("quantising" in text for text in said) == 1
    (library,) = cache.glob("*.so")
    encoder = Encoder(folder, target="x86-64")
    assert encoder.library.metadata.path == library
    assert encoder.max_seq_length == 16  # what the folder cuts texts off at
    assert encoder.prompts == {"query": "hello: "}
    for file in files:
        np.testing.assert_array_equal(np.load(file), encoder.encode(["hello world", "big"]))
    assert encoder.encode_query("big").tolist() == encoder.encode("hello: big").tolist()
    os.remove(library)


@pytest.mark.slow
def test_a_first_library_is_replaced_by_a_closer_one(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("torch", reason="importing a model needs torch")
    folder, texts = save_bert(tmp_path / "model"), ["hello world", "big"]
    first = Encoder(folder, target="x86-64").library.metadata.path
    assert list(cache.glob("*.so")) == [first]
    encoder = Encoder(folder, target="x86-64", refine=True)
    assert encoder.library.metadata.path == first
    quick = encoder.encode(texts)
    wait_until(lambda: encoder.library.metadata.path != first)
    assert len(list(cache.glob("*.so"))) == 2
    again = Encoder(folder, target="x86-64")  # made already
    assert again.library.metadata.path == encoder.library.metadata.path != first
    np.testing.assert_array_equal(encoder.encode(texts), again.encode(texts))
    np.testing.assert_array_equal(Encoder(first).encode(texts), quick)
    assert not np.array_equal(encoder.encode(texts), quick)


@pytest.mark.parametrize("code", [0, 3])
def test_a_library_that_is_made_apart(
    code: int,
    model: Path,
    made: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Path] = []
    script = f"import sys; print('no room left', file=sys.stderr); sys.exit({code})"
    monkeypatch.setattr(prepared, "_APART", script)
    prepared.prepare_apart(model, Options(), seen.append).join()
    assert seen == ([] if code else [prepared_library(model, Options())])
    assert [r.message for r in caplog.records] == (
        [f"{model} keeps its first library: no room left"] if code else []
    )
    assert prepared.is_prepared(model, Options()) == (code == 0)
    assert not prepared.is_prepared(model, Options(first=True))


def test_a_library_takes_the_place_of_another_unless_its_encoder_is_closed(
    library: Path, tmp_path: Path
) -> None:
    encoder = Encoder(library)
    before, other = encoder.library, Path(shutil.copy(library, tmp_path / "other.so"))
    _exchange(weakref.ref(encoder), {}, other)
    assert encoder.library.metadata.path == other
    before.close()
    encoder.close()
    _exchange(weakref.ref(encoder), {}, library)
    assert encoder.library.metadata.path == other


@pytest.mark.slow
def test_an_artefact_is_compiled(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from ibert_tvm.evaluation.evaluate import evaluate_integers

    quantized = bert()
    artefact = quantized.save(tmp_path / "bert.ibert")
    with caplog.at_level(logging.WARNING):
        encoder = Encoder(artefact, target="x86-64", max_seq_length=8)
    said = [r.message for r in caplog.records if r.name == prepared.__name__]
    assert said == [f"compiling {artefact} for x86-64; this is done once"]
    batch = encoder.tokenizer.encode(["small world"], 8)
    integers = evaluate_integers(quantized, batch.inputs(quantized.input_names))
    (record,) = encoder.library.metadata.outputs
    scaled = (integers[record.name][0].astype(np.float64) * record.scale).astype(np.float32)
    np.testing.assert_array_equal(encoder.encode("small world"), scaled)
