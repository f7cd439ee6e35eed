"""Cross-encoders: scores of pairs, in the order in which `CrossEncoder.rank` puts candidates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.conformance.head_folders import DISENTANGLED, MODERN, WITHOUT_TYPES, with_head
from tests.conformance.head_results import classes_of_pairs, ranks
from tests.conformance.layout import LAYOUTS, Layout
from tests.frontend.sentence_folders import TRANSFORMER

Write = Callable[[Path], None]
_IDENTITY = "torch.nn.modules.linear.Identity"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_NLI = {0: "contradiction", 1: "entailment", 2: "neutral"}

_reranker = partial(with_head, "reranker")


def _activation(name: str) -> dict[str, Any]:
    return {"sentence_transformers": {"activation_fn": name, "version": "4.1.0"}}


_TASK = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
_CROSS_ENCODER = {"model_type": "CrossEncoder", "prompts": {}, "activation_fn": _IDENTITY}

for name, folder in {
    "ms-marco-MiniLM-L6-v2": _reranker(config=_activation(_IDENTITY)),
    "ms-marco-MiniLM of sentence-transformers 3": _reranker(
        config={"sbert_ce_default_activation_function": _IDENTITY}
    ),
    "ms-marco-TinyBERT": _reranker(settings={"do_lower_case": True, "model_max_length": 32}),
    "ms-marco-electra-base": _reranker("electra", config=_activation(_IDENTITY)),
    "reranker without token types": _reranker(
        settings=WITHOUT_TYPES, config=_activation(_IDENTITY)
    ),
    "reranker of sentence-transformers 6": _reranker(
        modules=[TRANSFORMER],
        saved=True,
        files={
            "sentence_bert_config.json": _TASK,
            "config_sentence_transformers.json": _CROSS_ENCODER,
        },
    ),
    "bge-reranker-base": _reranker("xlm-roberta"),
    "bge-reranker-v2-m3": _reranker("xlm-roberta", config={"max_position_embeddings": 130}),
    "mxbai-rerank-base-v1": _reranker("deberta-v2", config=DISENTANGLED),
    "gte-reranker-modernbert-base": _reranker(
        "modernbert", settings=MODERN, config={"classifier_pooling": "mean"}
    ),
    "quora-roberta-base": _reranker("roberta", config=_activation(_SIGMOID)),
    "stsb-distilroberta-base": _reranker("roberta", pickled=True),
}.items():
    LAYOUTS.register(
        Layout(name, folder, ranks, default=name == "ms-marco-MiniLM-L6-v2", pairs=True)
    )

for name, folder in {
    "nli-MiniLM2": _reranker("roberta", config={"id2label": _NLI}),
    "nli-deberta-v3-base": _reranker(
        "deberta-v2",
        config={
            "id2label": _NLI,
            **DISENTANGLED,
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
        },
    ),
}.items():
    LAYOUTS.register(Layout(name, folder, classes_of_pairs, pairs=True))


def _with_code(architecture: str, part: str, other: str) -> Write:
    """A folder with code beside it, whose weights have other names, or are fewer."""

    def write(folder: Path) -> None:
        code = {"AutoModelForSequenceClassification": "modeling.ItsOwnForSequenceClassification"}
        _reranker(architecture, changes={"auto_map": code})(folder)
        file = folder / "model.safetensors"
        weights = {name.replace(part, other): weight for name, weight in load_file(file).items()}
        save_file({name: weight for name, weight in weights.items() if name}, file)

    return write


_LOGIT_SCORE = (
    "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    "1_LogitScore",
    {"true_token_id": 8, "false_token_id": 9},
)
for name, folder in {
    "jina-reranker-v1-turbo-en": _with_code(
        "bert", "bert.embeddings.position_embeddings.weight", ""
    ),
    "jina-reranker-v2-base-multilingual": _with_code(
        "xlm-roberta", "roberta.encoder.layer.", "roberta.encoder.layers."
    ),
    "mxbai-rerank-base-v2": _reranker(modules=[TRANSFORMER, _LOGIT_SCORE]),
    "reranker with code of its own": _reranker(config=_activation("my_code.Calibrated")),
}.items():
    LAYOUTS.register(Layout(name, folder, None))
