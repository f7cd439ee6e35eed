"""Semantic search with a pipeline of Haystack.

    pip install 'ibert-tvm[adapters]'
    python examples/search_haystack.py MODEL "a whale hunt" [--texts FILE]

MODEL is what `Encoder` takes: a library, a model folder, a name on the Hugging Face hub.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from ibert_tvm import Encoder
from ibert_tvm.adapters.haystack import IbertDocumentEmbedder, IbertTextEmbedder
from ibert_tvm.texts import data_file, read_texts


def search(model: str, texts: list[str], query: str, count: int) -> list[tuple[float, str]]:
    """Return the nearest texts with their scores, best first."""
    encoder = Encoder(model)
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    documents = [Document(content=text) for text in texts]
    store.write_documents(IbertDocumentEmbedder(encoder).run(documents)["documents"])
    pipeline = Pipeline()
    pipeline.add_component("embedder", IbertTextEmbedder(encoder))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=count))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": query}})["retriever"]["documents"]
    return [(document.score, document.content) for document in found]


def main() -> None:
    """Print the texts nearest to the query."""
    parser = argparse.ArgumentParser(description="Find the texts nearest in meaning to a query.")
    parser.add_argument("model")
    parser.add_argument("query")
    parser.add_argument("--texts", type=Path, default=data_file("heldout.txt"))
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    texts = read_texts("--texts", options.texts)
    for score, text in search(options.model, texts, options.query, options.count):
        print(f"{score:.3f}  {text[:100]}")


if __name__ == "__main__":
    main()
