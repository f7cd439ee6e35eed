"""Many texts from Parquet to Parquet by several processes, one of which is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.processes import PATIENCE, ROOT, run_captured, without_torch

COUNT = 3000


def source_of(folder: Path) -> tuple[Path, Path]:
    """A library, and a file of texts with their numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    library = tiny("embedding").build(folder / "tiny.so")
    table = pa.table({"number": range(COUNT), "text": texts_of(COUNT, 12)})
    pq.write_table(table, folder / "texts.parquet")
    return library, folder / "texts.parquet"


# Examples whose workers are these: one of them kills itself in its fifth call, once.
_DYING = """
import os, signal
import pool_embed

def die_once():
    try:
        os.close(os.open(os.environ["KILLED"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

calls, embed_rows = 0, pool_embed._embed

def embed(*arguments):
    global calls
    calls += 1
    if calls == 5:
        die_once()
    embed_rows(*arguments)
"""
_POOL = """
import dying, pool_embed
if __name__ == "__main__":
    pool_embed._embed = dying.embed
    pool_embed.main()
"""
_RAY = """
import sys
import dying, ray, ray_embed

class Dying(ray_embed.Embed):
    calls = 0

    def __call__(self, rows):
        self.calls += 1
        if self.calls == 5:
            dying.die_once()
        return super().__call__(rows)

ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 * 2**20)
ray_embed.Embed = Dying
ray_embed.embed(*sys.argv[1:], "text", 2, 64)
"""
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def run_and_die(script: str, folder: Path, *arguments: object) -> str:
    """Run a script with a worker that is killed; what it said."""
    (folder / "dying.py").write_text(_DYING, encoding="utf-8")
    (folder / "job.py").write_text(script, encoding="utf-8")
    killed = folder / "killed"
    # A cluster's processes inherit these; its workers would have the least priority.
    variables = without_torch({**os.environ, **_SETTINGS, "KILLED": str(killed)})
    for place in (ROOT / "examples", folder):
        variables["PYTHONPATH"] += os.pathsep + str(place)
    command = [sys.executable, str(folder / "job.py"), *map(str, arguments)]
    done = run_captured(command, env=variables, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert killed.exists()
    return done.stderr


def check(parts: Path, library: Path, source: Path) -> None:
    """Every row is there once, with the vector that the library gives its text."""
    import pyarrow.parquet as pq

    rows = pq.read_table(parts).sort_by("number")
    texts = pq.read_table(source)
    assert rows.column("number").to_pylist() == list(range(COUNT))
    assert rows.column("text").equals(texts.column("text"))
    vectors = np.array(rows.column("embedding").to_pylist(), np.float32)
    expected = Encoder(library).encode(texts.column("text").to_pylist())
    np.testing.assert_array_equal(vectors, expected)


@pytest.mark.slow  # three processes that import everything
def test_a_pool_loses_nothing_with_a_worker(tmp_path: Path) -> None:
    needs("pyarrow")
    library, source = source_of(tmp_path)
    parts = tmp_path / "parts"
    arguments = [library, source, parts, "--workers", 2, "--rows", 16]
    said = run_and_die(_POOL, tmp_path, *arguments)
    assert "a worker was lost; what it had is computed again" in said
    check(parts, library, source)
    # What is there is not computed again, what is missing is.
    times = {file.name: file.stat().st_mtime_ns for file in parts.iterdir()}
    (parts / "part-000007.parquet").unlink()
    command = [sys.executable, ROOT / "examples" / "pool_embed.py", *arguments]
    subprocess.run(list(map(str, command)), check=True, env=without_torch())
    again = {file.name: file.stat().st_mtime_ns for file in parts.iterdir()}
    assert {name for name in times if again[name] != times[name]} == {"part-000007.parquet"}
    check(parts, library, source)


@pytest.mark.slow  # a cluster takes long to start
def test_ray_loses_nothing_with_a_worker(tmp_path: Path) -> None:
    needs("ray")
    library, source = source_of(tmp_path)
    parts = tmp_path / "parts"
    run_and_die(_RAY, tmp_path, library, source, parts)
    check(parts, library, source)
