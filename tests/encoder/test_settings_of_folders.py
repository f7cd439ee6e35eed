"""Where texts are cut and what makes scores, as the model's own library has them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from ibert_tvm import load
from ibert_tvm.encoder.prepared import _length
from ibert_tvm.model.model_info import ModelInfo
from ibert_tvm.model.scores import ranked_classes
from tests.encoder.small_encoders import bert, save_bert
from tests.runtime.conftest import VOCABULARY


def layout(folder: Path, kind: str) -> Path:
    """A folder that cuts texts off at 12 tokens, in one of the ways that there are."""
    save_bert(folder)
    settings = folder / "sentence_bert_config.json"
    if kind == "subfolder":
        place = folder / "0_Transformer"
        place.mkdir()
        for file in [f for f in folder.iterdir() if f.is_file() and f.name != "modules.json"]:
            shutil.move(file, place / file.name)
        modules = json.loads((folder / "modules.json").read_text())
        modules[0]["path"] = "0_Transformer"
        (folder / "modules.json").write_text(json.dumps(modules))
        settings = place / settings.name
    settings.unlink()
    if kind in ("subfolder", "roberta"):
        name = "sentence_roberta_config.json" if kind == "roberta" else settings.name
        (settings.parent / name).write_text('{"max_seq_length": 12}')
    else:
        if kind == "both":
            settings.write_text('{"do_lower_case": false}')
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 12}')
    return folder


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", ["subfolder", "roberta", "tokenizer", "both"])
def test_texts_are_cut_where_the_source_cuts_them(tmp_path: Path, kind: str) -> None:
    from sentence_transformers import SentenceTransformer

    folder = layout(tmp_path / "model", kind)
    loaded = load(folder, verify=False)
    model = replace(bert(), tokenizer=loaded.tokenizer)
    assert _length(model, None) == 12
    if kind != "roberta":
        source = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        assert source.max_seq_length == 12


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("problem", "count", "function"),
    [
        ("multi_label_classification", 3, "sigmoid"),
        ("single_label_classification", 3, None),
        (None, 1, None),
        ("regression", 1, "none"),
        (None, 3, None),
    ],
)
def test_scores_follow_the_problem_type(
    tmp_path: Path, problem: str | None, count: int, function: str | None
) -> None:
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=32, num_labels=count, problem_type=problem,
    )  # fmt: skip
    source = transformers.BertForSequenceClassification(config).eval()
    source.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    for model in (load(tmp_path), load(source, verify=False)):
        assert model.info.post_processing.classes == function
        assert ModelInfo.from_json(json.loads(json.dumps(model.info.to_json()))) == model.info
    assert "post_processing" not in load(tmp_path, head="none", verify=False).info.to_json()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pipeline = transformers.pipeline(
        "text-classification", model=source, tokenizer=tokenizer, top_k=None, device="cpu"
    )
    (wanted,) = pipeline(["hello big world"])
    logits = source(**tokenizer("hello big world", return_tensors="pt")).logits.detach().numpy()
    (found,) = ranked_classes(
        logits, [*model.info.id2label.values()], None, model.info.post_processing.classes
    )
    for one, other in zip(found, wanted, strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
