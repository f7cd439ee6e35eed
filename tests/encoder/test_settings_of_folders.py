"""What makes scores, as the model's own library has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from ibert_tvm import load
from ibert_tvm.model.model_info import ModelInfo
from ibert_tvm.model.scores import ranked_classes
from tests.runtime.conftest import VOCABULARY


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
