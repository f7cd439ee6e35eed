"""What a class computes beyond its encoder is never left out unasked: it is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.frontend import ModelSourceError, load
from tests.examples import examples
from tests.frontend.imports import verified
from tests.snapshots import Messages

TEXTS = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip
BOTH = {"text_config": TEXTS, "vision_config": IMAGES}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "CLIPTextModelWithProjection": ("CLIPTextConfig", {**TEXTS, "projection_dim": 8}),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", {**IMAGES, "projection_dim": 8}),
    "CLIPModel": ("CLIPConfig", {**BOTH, "projection_dim": 8}),
    "SiglipTextModel": ("SiglipTextConfig", TEXTS),
    "ClapTextModelWithProjection": ("ClapTextConfig", {**TEXTS, "projection_dim": 8}),
    "DPRQuestionEncoder": ("DPRConfig", {**TEXTS, "projection_dim": 8}),
    "BertForMultipleChoice": ("BertConfig", TEXTS),
    "IBertForMultipleChoice": ("IBertConfig", {**TEXTS, "quant_mode": True}),
}


def made(name: str) -> Any:
    import transformers

    config, fields = CLASSES[name]
    return getattr(transformers, name)(getattr(transformers, config)(**fields)).eval()


@pytest.mark.slow_cases(7)
@pytest.mark.parametrize("name", examples([*CLASSES], "CLIPTextModelWithProjection"))
def test_a_part_is_never_left_out_unasked(name: str, tmp_path: Path, messages: Messages) -> None:
    model = made(name)
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # as of a model that is only run
    with messages.raises(ModelSourceError):
        load(model, verify=False)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.save_pretrained(tmp_path / "folder")
    with messages.raises(ModelSourceError):
        load(tmp_path / "folder", verify=False)


@pytest.mark.slow
def test_what_is_asked_for_is_imported(tmp_path: Path) -> None:
    model = made("DPRQuestionEncoder")
    assert verified(model, head="pooled").info.outputs[0].kind == "pooled"
    model.save_pretrained(tmp_path)
    assert verified(tmp_path, head="pooled").info.head == "pooled"
    assert load(made("SiglipTextModel"), head="none", verify=False).info.head == "none"


@pytest.mark.slow
def test_folders_of_pretraining_are_those_of_an_encoder(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(**TEXTS)
    for name in ("BertForPreTraining", "BertForNextSentencePrediction", "BertLMHeadModel"):
        getattr(transformers, name)(config).save_pretrained(tmp_path / name)
        assert load(tmp_path / name, verify=False).info.head == "none"
