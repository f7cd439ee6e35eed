"""Vectors of a column of texts: Parquet in, Parquet out, by a pool of processes on one machine.

    pip install 'ibert-tvm[parquet]'
    python examples/pool_embed.py minilm.so texts.parquet vectors --column text --workers 8

Every worker loads the library by itself; its weights are pages of the mapped file, which all of
them share. The output is a folder of files, one for each so many rows, in their order, with all
columns of the input and ``embedding``. A file is there when it is complete: a worker that dies
loses nothing, its rows are computed again by another one; and a run that was broken off goes on
where it was when it is started again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ibert_tvm import Encoder

_LOSSES = 3
"""Pools that may break one after the other without a file being finished between."""

_encoder: Encoder | None = None  # of a worker


def _load(library: str) -> None:
    global _encoder
    _encoder = Encoder(library, num_threads=1)


def _embed(rows: pa.RecordBatch, column: str, file: Path) -> None:
    """Write rows with their vectors; in a worker."""
    assert _encoder is not None
    vectors = _encoder.encode(rows.column(column).to_pylist())
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    table = pa.Table.from_batches([rows]).append_column("embedding", embedding)
    unfinished = file.with_name(f".{file.name}-{os.getpid()}")
    pq.write_table(table, unfinished)
    os.replace(unfinished, file)


def embed(
    library: str, source: Path, folder: Path, column: str, workers: int, rows: int = 1024
) -> int:
    """Compute what is missing in `folder`; returns how often the pool was started again."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: Iterator[tuple[Path, pa.RecordBatch]] = (
        (folder / f"part-{number:06}.parquet", batch)
        for number, batch in enumerate(pq.ParquetFile(source).iter_batches(rows))
    )
    missing = ((file, batch) for file, batch in parts if not file.exists())
    given: list[tuple[Path, pa.RecordBatch]] = []  # to the pool, and not done: the only ones here
    losses = in_a_row = 0
    while True:
        for unfinished in folder.glob(".*.parquet-*"):  # of a worker that is no more
            unfinished.unlink()
        pool = ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=_load, initargs=(library,)
        )
        try:
            running: dict[Future[None], tuple[Path, pa.RecordBatch]] = {
                pool.submit(_embed, batch, column, file): (file, batch) for file, batch in given
            }
            while True:
                while len(running) < 2 * workers and (part := next(missing, None)):
                    given.append(part)
                    running[pool.submit(_embed, part[1], column, part[0])] = part
                if not running:
                    return losses
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    file, _ = running.pop(future)
                    given = [other for other in given if other[0] != file]
                    in_a_row = 0
        except BrokenProcessPool:
            losses, in_a_row = losses + 1, in_a_row + 1
            if in_a_row == _LOSSES:
                raise
            given = [part for part in given if not part[0].exists()]
            print("a worker was lost; what it had is computed again", file=sys.stderr)
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Vectors of texts, Parquet in, Parquet out.")
    parser.add_argument("library", help="what `ibert compile` wrote")
    parser.add_argument("source", type=Path, help="a Parquet file")
    parser.add_argument("folder", type=Path, help="where to write Parquet files")
    parser.add_argument("--column", default="text")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, default=1024, help="of a file (default: 1024)")
    options = parser.parse_args()
    embed(**vars(options))


if __name__ == "__main__":
    main()
