"""The memory plan: a run of a library takes no memory from the system, once its pool is filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ibert_tvm.targets.export import layout_weights
from tests.targets.encoder_library import build_encoder

# Counts allocations of a page and more between two calls of `count_allocations`. Preloaded, it
# replaces the allocator's functions in every library of the process.
_COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#define LARGE 4096
static volatile long counting, counted;
static void note(size_t size) { if (counting && size >= LARGE) counted++; }
#define NEXT(type, name) static type next; if (!next) next = (type)dlsym(RTLD_NEXT, name)
typedef void *(*malloc_t)(size_t);
typedef void *(*aligned_t)(size_t, size_t);
typedef int (*posix_t)(void **, size_t, size_t);
void *malloc(size_t size) { NEXT(malloc_t, "malloc"); note(size); return next(size); }
void *aligned_alloc(size_t to, size_t size) {
    NEXT(aligned_t, "aligned_alloc"); note(size); return next(to, size);
}
int posix_memalign(void **p, size_t to, size_t size) {
    NEXT(posix_t, "posix_memalign"); note(size); return next(p, to, size);
}
long count_allocations(int on) { long result = counted; counted = 0; counting = on; return result; }
"""


_RUN = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
from ibert_tvm.engine import Engine, aligned_zeros
from ibert_tvm.library_file import ParameterRecord
counter = ctypes.CDLL(None)
shapes = json.loads(sys.argv[2])
engine = Engine(Path(sys.argv[1]), [f"main_b{batch}_s{seq_len}" for batch, seq_len in shapes])
records = [ParameterRecord(r["name"], r["dtype"], tuple(r["shape"]), r["offset"])
           for r in json.loads(sys.argv[3])]
parameters = [engine.parameter(record) for record in records]
for batch, seq_len in shapes:
    inputs = [engine.tensor(aligned_zeros((batch, seq_len), "int32")) for _ in range(2)]
    name = f"main_b{batch}_s{seq_len}"
    counter.count_allocations(1)
    for _ in range(3):  # the pool is settled after the second run, or the third
        engine.call(name, [*inputs, *parameters], 1)
    first = counter.count_allocations(1)
    for _ in range(20):
        engine.call(name, [*inputs, *parameters], 1)
    print(first, counter.count_allocations(0))
"""


def test_a_run_allocates_no_memory(tmp_path: Path) -> None:
    """Neither activations nor workspace nor outputs; the first runs of a shape fill the pool."""
    (tmp_path / "counter.c").write_text(_COUNTER)
    command = ["gcc", "-O1", "-shared", "-fPIC", "counter.c", "-o", "counter.so", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    shapes = [(1, 64), (2, 64)]
    build = build_encoder("x86-64", shapes=shapes, hidden=64, heads=2, feed_forward=128)
    library = build.export(tmp_path / "model.so")
    rows, _ = layout_weights(build.parameters)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(library), json.dumps(shapes), json.dumps(rows)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "counter.so")},
    )
    assert done.returncode == 0, done.stderr
    counts = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(counts) == len(shapes)
    for first, later in counts:
        assert first > 0, "the counter counts nothing"
        assert later == 0
