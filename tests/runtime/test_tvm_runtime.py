"""Running a library takes little of TVM with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.arm.small_bert import small_bert
from tests.processes import run_captured


def _python(code: str, *arguments: object) -> str:
    done = run_captured([sys.executable, "-c", code, *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_loading_and_running_needs_neither_the_compiler_nor_torch(library_path: Path) -> None:
    script = (
        "import sys, ibert_tvm\n"
        "library = ibert_tvm.load_library(sys.argv[1], num_threads=1)\n"
        "before = library.run([[4, 5, 6]], dequantize=False)['hidden'].values\n"
        "print([name for name in ('tvm', 'torch', 'transformers') if name in sys.modules])\n"
        "with open('/proc/self/maps') as maps:\n"
        "    print('libtvm_compiler' in maps.read())\n"
        "import torch, tvm\n"  # as a process that compiles and runs does
        "assert (library.run([[4, 5, 6]], dequantize=False)['hidden'].values == before).all()\n"
        "again = ibert_tvm.load_library(sys.argv[1], num_threads=1)\n"
        "assert (again.run([[4, 5, 6]], dequantize=False)['hidden'].values == before).all()\n"
        "print(tvm.runtime.tensor(torch.ones(2, dtype=torch.int32).numpy()).numpy().sum())\n"
    )
    assert _python(script, library_path).split("\n") == ["[]", "False", "2", ""]


@pytest.mark.slow
def test_compiling_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from ibert_tvm.cli import main\n"
        "assert main(['compile', sys.argv[1], '-o', sys.argv[2], '--seq-len', '8']) == 0\n"
        "print([name for name in ('tvm', 'torch') if name in sys.modules])\n"
    )
    model = small_bert().save(tmp_path / "model.ibert")
    shown = _python(script, model, tmp_path / "model.so")
    assert shown.splitlines()[-1] == "['tvm']"
