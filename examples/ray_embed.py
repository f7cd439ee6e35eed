"""Vectors of a column of texts: Parquet in, Parquet out, on as many machines as a Ray cluster has.

    pip install 'ibert-tvm[ray]'                        # on every machine
    python examples/ray_embed.py minilm.so texts/ vectors/ --column text --workers 64

Every worker is an actor with one processor, which loads the library once; those of one machine
share its weights, which are pages of the mapped file. The library lies under the same path on
every machine. Ray starts a worker that is lost again, and computes again what it had.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray
import ray.data

from ibert_tvm import Encoder


class Embed:
    """A worker."""

    def __init__(self, library: str, column: str) -> None:
        self._encoder, self._column = Encoder(library, num_threads=1), column

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Rows by column, and their vectors."""
        return {**rows, "embedding": self._encoder.encode(list(rows[self._column]))}


def embed(
    library: str, source: str, folder: str, column: str, workers: int, rows: int = 1024
) -> None:
    """Compute vectors of all rows; the order of the rows is not kept."""
    texts = ray.data.read_parquet(source)
    vectors = texts.map_batches(
        Embed,
        fn_constructor_args=(library, column),
        batch_size=rows,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        max_restarts=-1,
        max_task_retries=-1,
    )
    vectors.write_parquet(folder)


def main() -> None:
    """Read the command line; RAY_ADDRESS says which cluster, else one is started here."""
    parser = argparse.ArgumentParser(description="Vectors of texts, Parquet in, Parquet out.")
    parser.add_argument("library", help="what `ibert compile` wrote")
    parser.add_argument("source", help="a Parquet file, or a folder of them")
    parser.add_argument("folder", help="where to write Parquet files")
    parser.add_argument("--column", default="text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1024, help="of a batch (default: 1024)")
    options = parser.parse_args()
    ray.init()
    embed(**vars(options))


if __name__ == "__main__":
    main()
