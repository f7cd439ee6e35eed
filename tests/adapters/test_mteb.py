"""MTEB on an encoder: three small tasks of local data, with the results of its own wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs

pytestmark = pytest.mark.slow  # importing the package takes seconds


def tasks() -> list[Any]:
    """Similarity, classification and retrieval, of the small models' words."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    texts = [text for text in texts_of(60) if text]

    def about(kind: str, score: str) -> TaskMetadata:
        return TaskMetadata(
            type=kind, name=f"Small{kind}", main_score=score, description="of the tests",
            dataset={"path": "none/none", "revision": "1"}, eval_splits=["test"],
            eval_langs=["eng-Latn"], modalities=["text"], category="t2t",
        )  # fmt: skip

    class Similarity(AbsTaskSTS):
        metadata = about("STS", "cosine_spearman")

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            columns = {"sentence1": texts[:20], "sentence2": texts[20:40], "score": [*range(20)]}
            self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
            self.data_loaded = True

    class Classification(AbsTaskClassification):
        metadata = about("Classification", "accuracy")

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            rows = {"text": texts[:40], "label": [int("big" in text) for text in texts[:40]]}
            whole = Dataset.from_dict(rows)
            self.dataset = DatasetDict({"train": whole, "test": whole})
            self.data_loaded = True

    class Retrieval(AbsTaskRetrieval):
        metadata = about("Retrieval", "ndcg_at_10")

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            corpus = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts[:30])]
            queries = [{"id": f"q{i}", "text": text} for i, text in enumerate(texts[:5])]
            split = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": {f"q{i}": {f"d{i}": 1} for i in range(5)},
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return [Similarity(), Classification(), Retrieval()]


def test_mteb_gives_what_it_gives_of_a_sentence_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mteb")
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))
    import mteb
    from sentence_transformers import SentenceTransformer

    from ibert_tvm.adapters.mteb import IbertEncoder
    from ibert_tvm.adapters.sentence_transformers import IbertModule

    model = tiny("embedding", prompts={"query": "small ", "document": "big "})
    encoder = Encoder(model.build(tmp_path / "tiny.so"))
    own = IbertEncoder(encoder)
    other = SentenceTransformer(modules=[IbertModule(encoder)], device="cpu")
    assert own.mteb_model_meta.name == "ibert-tvm/tiny"
    assert own.mteb_model_meta.revision == encoder.library.metadata.digest
    options = {"cache": None, "co2_tracker": False, "encode_kwargs": {"batch_size": 8}}
    scores = [
        {result.task_name: result.get_score() for result in mteb.evaluate(each, tasks(), **options)}
        for each in (own, other)
    ]
    assert len(scores[0]) == 3
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert all(0 < abs(score) < 1 for score in scores[0].values())
