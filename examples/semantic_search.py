"""Semantic search with an integer-only sentence encoder, in one file.

    make setup
    .venv/bin/python examples/semantic_search.py "a whale hunt"

On first use MiniLM is quantised and compiled (about a minute), into the folder ``build/search``;
after that a query takes milliseconds and needs neither torch nor transformers. The texts searched
are the project's held-out ones; ``--texts FILE`` takes another file, one text per line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.demo import find_model
from ibert_tvm.texts import data_file


def library_path(folder: Path) -> Path:
    """Quantise and compile the encoder, unless that has been done."""
    path = folder / "minilm.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        calibration = data_file("calibration.txt").read_text(encoding="utf-8").splitlines()
        quantized = ibert.quantize(ibert.load(find_model()), calibration=calibration)
        quantized.save(folder / "minilm.ibert")
        # Queries are short and texts longer: each runs in the smallest shape that fits.
        shapes = [(1, 32), (8, 32), (8, 128)]
        ibert.compile(quantized, target="host", shapes=shapes).export(path)
    return path


def embed(library: ibert.Library, texts: list[str]) -> np.ndarray:
    """Embeddings of unit length [texts, channels]: their products are cosines."""
    (vectors,) = library.run_texts(texts).values()
    return vectors


def main() -> None:
    """Print the texts nearest to the query."""
    parser = argparse.ArgumentParser(description="Find the texts nearest in meaning to a query.")
    parser.add_argument("query")
    parser.add_argument("--texts", type=Path, default=data_file("heldout.txt"))
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/search"))
    options = parser.parse_args()
    library = ibert.load_library(library_path(options.folder))
    texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line]
    scores = embed(library, texts) @ embed(library, [options.query])[0]
    for index in np.argsort(-scores)[: options.count]:
        print(f"{scores[index]:.3f}  {texts[index][:100]}")


if __name__ == "__main__":
    main()
