"""Many texts from Parquet to Parquet by several processes, one of which is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.processes import ROOT, run_captured, without_torch

COUNT = 3000
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def source_of(folder: Path) -> tuple[Path, Path]:
    """A library, and a file of texts with their numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    library = tiny("embedding").build(folder / "tiny.so")
    table = pa.table({"number": range(COUNT), "text": texts_of(COUNT, 12)})
    pq.write_table(table, folder / "texts.parquet")
    return library, folder / "texts.parquet"


def run_and_kill(script: str, arguments: list[Any], is_worker: Any, parts: Path) -> str:
    """Run an example; kill one of its workers when the first rows are written. What it said."""
    command = [sys.executable, ROOT / "examples" / script, *arguments]
    process = subprocess.Popen(
        list(map(str, command)),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=without_torch(),
    )
    killed = None
    while killed is None and process.poll() is None:
        if parts.is_dir() and any(parts.iterdir()):
            for child in psutil.Process(process.pid).children(recursive=True):
                if killed is None and is_worker(child):
                    child.kill()
                    killed = child
        time.sleep(0.005)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert killed is not None, "it was done before a worker could be killed"
    return said


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
    said = run_and_kill("pool_embed.py", arguments, is_pool_worker, parts)
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


def is_pool_worker(process: psutil.Process) -> bool:
    return any("spawn_main" in word for word in process.cmdline())


@pytest.mark.slow  # a cluster takes long to start
def test_ray_loses_nothing_with_a_worker(tmp_path: Path) -> None:
    needs("ray")
    library, source = source_of(tmp_path)
    parts = tmp_path / "parts"
    killed = tmp_path / "killed"
    script = tmp_path / "job.py"
    script.write_text(
        f"""
import os, signal
import ray, ray_embed

class Dying(ray_embed.Embed):
    calls = 0

    def __call__(self, rows):
        self.calls += 1
        if self.calls == 5:
            try:  # one worker of the two, once
                os.close(os.open({str(killed)!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(rows)

ray.init(
    num_cpus=3,
    include_dashboard=False,
    object_store_memory=100 * 2**20,
)
ray_embed.Embed = Dying
ray_embed.embed({str(library)!r}, {str(source)!r}, {str(parts)!r}, "text", 2, 64)
""",
        encoding="utf-8",
    )
    # The cluster's processes inherit these; its workers would have the least priority.
    variables = without_torch({**os.environ, **_RAY})
    variables["PYTHONPATH"] += os.pathsep + str(ROOT / "examples")
    done = run_captured([sys.executable, str(script)], env=variables, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert killed.exists()
    check(parts, library, source)
