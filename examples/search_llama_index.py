"""Semantic search with LlamaIndex's vector index.

    pip install 'ibert-tvm[adapters]'
    python examples/search_llama_index.py MODEL "a whale hunt" [--texts FILE]

MODEL is what `Encoder` takes: a library, a model folder, a name on the Hugging Face hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ibert_tvm.adapters.llama_index import IbertEmbedding
from ibert_tvm.texts import data_file, read_texts


def search(model: str, texts: list[str], query: str, count: int) -> list[tuple[float, str]]:
    """Return the nearest texts with their scores, best first."""
    nodes = [TextNode(text=text) for text in texts]
    index = VectorStoreIndex(nodes, embed_model=IbertEmbedding(model))
    found = index.as_retriever(similarity_top_k=count).retrieve(query)
    return [(node.score or 0.0, node.text) for node in found]


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
