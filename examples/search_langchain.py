"""Semantic search with LangChain's vector store in memory.

    pip install 'ibert-tvm[adapters]'
    python examples/search_langchain.py MODEL "a whale hunt" [--texts FILE]

MODEL is what `Encoder` takes: a library, a model folder, a name on the Hugging Face hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from langchain_core.vectorstores import InMemoryVectorStore

from ibert_tvm.adapters.langchain import IbertEmbeddings
from ibert_tvm.texts import data_file, read_texts


def search(model: str, texts: list[str], query: str, count: int) -> list[tuple[float, str]]:
    """Return the nearest texts with their scores, best first."""
    store = InMemoryVectorStore.from_texts(texts, IbertEmbeddings(model))
    found = store.similarity_search_with_score(query, k=count)
    return [(score, document.page_content) for document, score in found]


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
