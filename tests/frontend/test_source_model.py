"""What transformers sees of a configuration, and what is kept from it."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from huggingface_hub import constants

from ibert_tvm.frontend import ModelSourceError, source_model
from ibert_tvm.frontend.hf_folder import HfFolder
from ibert_tvm.frontend.source_model import model_config
from ibert_tvm.frontend.transformers_import import load_folder
from tests.frontend.architectures import make
from tests.processes import PATIENCE


@pytest.fixture
def folder(tmp_path):
    make("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    return tmp_path


def _set(folder, **settings) -> HfFolder:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return HfFolder.read(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"_attn_implementation": "owner/kernels"},
        {"attn_implementation": "owner/kernels"},
        {"_attn_implementation_internal": "owner/kernels"},
        {"experts_implementation": "owner/kernels"},
        {"auto_map": {"AutoModel": "owner/code--modeling.Model"}},
        {"custom_pipelines": {"x": {"impl": "pipeline.Class"}}},
        {"to_dict": "in the place of a method"},
        {"finetuning_task": "https://example.org/task"},
        {"_name_or_path": "owner/model"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_name_code_are_left_out(folder, monkeypatch, settings):
    def refused(*args: object) -> None:
        raise AssertionError(f"a connection was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    plain = model_config(HfFolder.read(folder)).to_dict()
    source = _set(folder, **settings)
    assert model_config(source).to_dict() == plain
    model, _ = load_folder(source, "none")
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"hidden_act": "owner/kernel:gelu"},
        {"pruned_heads": {"0": "../elsewhere"}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_without_which_the_model_is_another_are_refused(folder, messages, settings):
    source = _set(folder, **settings)
    with messages.raises(ModelSourceError):
        load_folder(source, "none")


def test_an_adapter_of_another_model_is_refused(folder, messages):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/model"}')
    with messages.raises(ModelSourceError):
        load_folder(HfFolder.read(folder), "none")


def test_fields_and_labels_are_as_transformers_reads_them(folder):
    source = _set(folder, id2label={"0": "a/b c", "1": "d"}, hidden_act="gelu_new", extra=7)
    config = model_config(source, num_attention_heads=1)
    assert (config.id2label, config.hidden_act) == ({0: "a/b c", 1: "d"}, "gelu_new")
    assert (config.num_attention_heads, config.extra) == (1, 7)


def test_attention_is_transformers_own_choice_unless_asked_for(folder):
    source = HfFolder.read(folder)
    model = source_model.build(source, "AutoModel", model_config(source))
    assert model.config._attn_implementation == "sdpa"


def test_threads_leave_access_to_the_hub_as_it_was(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    second_begun, first_done = threading.Event(), threading.Event()

    def first() -> None:
        with source_model._offline():
            thread.start()
            second_begun.wait(0.2)  # it does not begin, if it waits for this one
        first_done.set()

    def second() -> None:
        with source_model._offline():
            second_begun.set()
            assert first_done.wait(PATIENCE)  # the later one to end

    thread = threading.Thread(target=second)
    first()
    thread.join()
    assert second_begun.is_set() and constants.HF_HUB_OFFLINE is False
