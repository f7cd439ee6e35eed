"""Examples that search with LangChain, LlamaIndex, Haystack and Qdrant; Haystack's adapter."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.extras import needs

pytestmark = pytest.mark.slow  # these packages take seconds to import
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXTS = ["hello world", "small big small", "big", "world hello small small"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "small ", "document": "big "}
    return tiny("embedding", prompts=prompts).build(tmp_path_factory.mktemp("search") / "tiny.so")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("langchain", "langchain_core"),
        ("llama_index", "llama_index.core"),
        ("haystack", "haystack"),
        ("qdrant", "qdrant_client"),
    ],
)
def test_an_example_finds_the_nearest_texts(
    example: str, package: str, library: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    needs(package)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = [library, "big world", "--texts", tmp_path / "texts.txt", "--count", 2]
    program = EXAMPLES / f"search_{example}.py"
    monkeypatch.setattr("sys.argv", [str(program), *map(str, arguments)])
    runpy.run_path(str(program), run_name="__main__")
    encoder = Encoder(library)
    scores = encoder.similarity(encoder.encode_document(TEXTS), encoder.encode_query("big world"))
    best = np.argsort(-scores[:, 0], kind="stable")[:2]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2] for line in lines] == [TEXTS[place] for place in best]
    found = [float(line.split()[0]) for line in lines]
    np.testing.assert_allclose(found, scores[best, 0], atol=2e-3)


def test_haystack_embeds_and_stores_a_pipeline(library: Path) -> None:
    needs("haystack")
    from haystack import Document, Pipeline

    from ibert_tvm.adapters.haystack import IbertDocumentEmbedder, IbertTextEmbedder

    encoder, options = Encoder(library), {"normalize_embeddings": True}
    pipeline = Pipeline()
    pipeline.add_component("query", IbertTextEmbedder(encoder, options))
    pipeline.add_component("documents", IbertDocumentEmbedder(library, max_seq_length=5))
    documents = [Document(content=text, meta={"place": i}) for i, text in enumerate(TEXTS)]
    allowed = [IbertTextEmbedder.__module__]
    for each in (pipeline, Pipeline.loads(pipeline.dumps(), allowed_modules=allowed)):
        found = each.run({"query": {"text": "big"}, "documents": {"documents": documents}})
        assert found["query"]["embedding"] == encoder.encode_query("big", **options).tolist()
        vectors = Encoder(library, max_seq_length=5).encode_document(TEXTS)
        given = found["documents"]["documents"]
        assert [document.embedding for document in given] == vectors.tolist()
        assert [document.meta["place"] for document in given] == list(range(len(TEXTS)))
    assert documents[0].embedding is None
