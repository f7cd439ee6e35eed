"""Two writers of one output, and readers while it is replaced: whole outputs, always."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ibert_tvm.common.errors import ArtefactError
from ibert_tvm.model.artefact import QuantizedModel
from tests.artefact.conftest import make_quantized
from tests.processes import ROOT, run_captured, without_torch

_WRITER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from ibert_tvm.model.artefact import QuantizedModel
folder, preset, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
model = QuantizedModel.load(folder)
model = replace(model, quantization={**model.quantization, "preset": preset})
end = time.monotonic() + seconds
count = 0
while time.monotonic() < end or count < 20:
    model.save(folder)
    count += 1
"""


@pytest.mark.slow
def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    """A reader that meets a change gets an error that says so, or one of the two; never nothing."""
    folder = make_quantized().save(tmp_path / "x.ibert")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, folder, preset, "3"], cwd=ROOT, env=without_torch()
        )
        for preset in ("accurate", "paper")
    ]
    read, changed, missing = 0, 0, 0
    while any(writer.poll() is None for writer in writers):
        missing += not folder.is_dir()
        try:
            assert QuantizedModel.load(folder).preset in ("accurate", "paper")
            read += 1
        except ArtefactError:
            # Files of two saves were met: those of the first are gone, and the digests tell.
            changed += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert read + changed > 0 and missing == 0
    assert QuantizedModel.load(folder).preset in ("accurate", "paper")
    assert [path.name for path in tmp_path.iterdir()] == ["x.ibert"]


_LIMITED = """
import resource, sys
from pathlib import Path
import ibert_tvm.cli
from ibert_tvm.model.artefact import QuantizedModel
model = QuantizedModel.load(sys.argv[1])
kind, limit = getattr(resource, sys.argv[3]), int(sys.argv[4])
if kind == resource.RLIMIT_AS:
    limit += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(kind, (limit, limit))
sys.exit(ibert_tvm.cli.main(["run", sys.argv[2], "--inputs", sys.argv[5]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limit"),
    [("RLIMIT_AS", 2**25), ("RLIMIT_AS", 2**27), ("RLIMIT_NOFILE", 4), ("RLIMIT_NOFILE", 8)],
)
def test_little_memory_and_few_files(tmp_path: Path, kind: str, limit: int) -> None:
    """A named error, never a traceback of ours."""
    import numpy as np

    folder = make_quantized().save(tmp_path / "x.ibert")
    np.savez(tmp_path / "inputs.npz", input_ids=np.zeros((4096, 512), np.int64))
    arguments = [str(folder), str(folder / "model.json"), kind, str(limit)]
    done = run_captured(
        [sys.executable, "-c", _LIMITED, *arguments, str(tmp_path / "inputs.npz")],
        cwd=ROOT,
        env=without_torch(),
    )
    assert done.returncode in (2, 3, 4), done.stderr
    assert done.stderr.startswith("error: ") and "internal error" not in done.stderr
