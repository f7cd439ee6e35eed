"""Names of the hub: what is one, where it is looked for, and that none leads elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import UsageError
from ibert_tvm.encoder import encoder as encoder_module
from ibert_tvm.encoder.hub import hub_folder, is_hub_name
from ibert_tvm.frontend import ModelSourceError
from tests.encoder.small_encoders import save_bert
from tests.snapshots import Messages


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one model, of two commits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "hub"))
    entry = tmp_path / "hub" / "models--sentence-transformers--tiny"
    for commit in ("12ab", "34cd"):
        (entry / "snapshots" / commit).mkdir(parents=True)
    (entry / "refs" / "refs" / "pr").mkdir(parents=True)
    (entry / "refs" / "main").write_text("12ab")
    (entry / "refs" / "refs" / "pr" / "1").write_text("34cd")
    (entry / "refs" / "bad").write_text("../../../elsewhere")
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("all-MiniLM-L6-v2", True),
        ("me/model-v1.5_x", True),
        *((path, False) for path in ("a.so", "../a", "a/../b", "a/b/c", "/a", "~/a", "-a", "a.")),
        *((trick, False) for trick in ("a--b", "a/b\n", "a\0b", "x/é", "", "a" * 99, "a/..b")),
        (Path("a/b"), False),
    ],
)
def test_what_is_a_name(model: Any, named: bool) -> None:
    assert is_hub_name(model) is named


def test_a_path_that_exists_comes_first(tmp_path: Path) -> None:
    (tmp_path / "me").mkdir()
    assert is_hub_name("me/model") and not is_hub_name("me")


def test_what_is_in_the_cache_is_found(cache: Path) -> None:
    place = cache / "models--sentence-transformers--tiny" / "snapshots"
    for name in ("tiny", "sentence-transformers/tiny"):
        assert hub_folder(name) == hub_folder(name, "main") == place / "12ab"
    assert hub_folder("tiny", "34cd") == hub_folder("tiny", "refs/pr/1") == place / "34cd"
    assert hub_folder("tiny", cache_folder=cache) == place / "12ab"


def test_what_is_not_says_what_to_do(messages: Messages) -> None:
    for error, call in (
        (UsageError, lambda: Encoder("me/tiny")),
        (UsageError, lambda: hub_folder("tiny", "../../main")),
        (UsageError, lambda: hub_folder("../tiny")),
        (ModelSourceError, lambda: hub_folder("tiny", "bad")),
        (ModelSourceError, lambda: hub_folder("tiny", "56ef")),
    ):
        with messages.raises(error):
            call()


def test_a_download_is_asked_for_and_takes_what_is_read(
    monkeypatch: pytest.MonkeyPatch, messages: Messages, tmp_path: Path
) -> None:
    asked: list[Any] = []
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "vocab.txt", "onnx/a.onnx"]

    def download(name: str, **options: Any) -> str:
        asked.append((name, options["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    listed = lambda *_arguments, **_options: files  # noqa: E731
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", listed)
    assert hub_folder("tiny", local_files_only=False) == tmp_path
    wanted = ["config.json", "model.safetensors", "vocab.txt"]
    assert asked == [("sentence-transformers/tiny", wanted)]
    files.remove("model.safetensors")
    hub_folder("me/tiny", local_files_only=False)
    assert asked[1] == ("me/tiny", ["config.json", "pytorch_model.bin", "vocab.txt"])
    files.append("encoder.json")
    hub_folder("me/tiny", local_files_only=False)
    assert asked[2] == ("me/tiny", files)

    def unreachable(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    with messages.raises(ModelSourceError):
        hub_folder("me/tiny", local_files_only=False)


def test_an_encoder_is_made_of_the_snapshot(
    cache: Path, monkeypatch: pytest.MonkeyPatch, encoder: Callable[..., Encoder]
) -> None:
    pytest.importorskip("torch", reason="making a model folder needs torch")
    place = save_bert(cache / "models--sentence-transformers--tiny" / "snapshots" / "12ab")
    asked: list[Path] = []
    library = encoder("embedding").library.metadata.path

    def prepared(path: Path, _options: Any) -> Path:
        asked.append(path)
        return library

    monkeypatch.setattr("ibert_tvm.encoder.prepared.prepared_library", prepared)
    assert Encoder("tiny").library.metadata.path == library
    assert asked == [place]
    assert encoder_module.is_saved(place) is False
