"""Semantic search with Qdrant, in memory; `QdrantClient(path=...)` keeps it on disk.

    pip install 'ibert-tvm[adapters]'
    python examples/search_qdrant.py MODEL "a whale hunt" [--texts FILE]

MODEL is what `Encoder` takes: a library, a model folder, a name on the Hugging Face hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qdrant_client import QdrantClient, models

from ibert_tvm import Encoder
from ibert_tvm.texts import data_file, read_texts


def search(model: str, texts: list[str], query: str, count: int) -> list[tuple[float, str]]:
    """Return the nearest texts with their scores, best first."""
    encoder = Encoder(model)
    vectors = encoder.encode_document(texts, show_progress_bar=True)
    client = QdrantClient(":memory:")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("texts", vectors_config=size)
    points = [
        models.PointStruct(id=place, vector=vector.tolist(), payload={"text": text})
        for place, (vector, text) in enumerate(zip(vectors, texts, strict=True))
    ]
    client.upsert("texts", points)
    wanted = encoder.encode_query(query).tolist()
    found = client.query_points("texts", query=wanted, limit=count).points
    return [(point.score, point.payload["text"]) for point in found if point.payload]


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
