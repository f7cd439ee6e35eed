"""Writers, each call of which that changes the disk fails once, or is the last one.

``python -m tests.faults.harness WRITER FOLDER FIRST STEP`` runs under the shim of `tests.faults`:
for every STEP-th call a child process writes, and this process looks at what is left. What is wrong
is printed, a line each; then the number of calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

CODES = {0: "SIGKILL", errno.ENOSPC: "ENOSPC", errno.EIO: "EIO"}
_REFUSED, _INTERNAL = 10, 11


@dataclass(frozen=True)
class Writer:
    """What writes.

    Attributes
    ----------
    write
        Writes an output of a version, 0 or 1, into a folder.
    read
        Which version is there; raises an exception if it is none.
    listed
        Names that the folder holds once the output is written.
    """

    write: Callable[[Path, int], None]
    read: Callable[[Path], int]
    listed: tuple[str, ...]


def _save() -> Writer:
    from ibert_tvm.model.artefact import QuantizedModel
    from tests.artefact.conftest import make_quantized

    old = make_quantized()
    models = [old, replace(old, quantization={**old.quantization, "preset": "paper"})]
    return Writer(
        lambda folder, version: models[version].save(folder / "x.ibert") and None,
        lambda folder: [m.preset for m in models].index(
            QuantizedModel.load(folder / "x.ibert").preset
        ),
        ("x.ibert",),
    )


def _export() -> Writer:
    import ibert_tvm as ibert
    from ibert_tvm.runtime.library_file import read_metadata
    from tests.rpc.small_model import small_model

    model = small_model()
    lengths = (8, 9)
    made = [ibert.compile(model, target="host", shapes=[(1, n)], runtime="none") for n in lengths]

    def read(folder: Path) -> int:
        (function,) = read_metadata(folder / "model.so").functions
        # The header may be the other's: its fingerprint is, and `init` refuses it.
        assert "_model_h" in (folder / "model.h").read_text().lower()
        return lengths.index(function.seq_len)

    return Writer(
        lambda folder, version: made[version].export(folder / "model.so") and None,
        read,
        ("model.h", "model.so"),
    )


def _tvm() -> Writer:
    import tvm

    from ibert_tvm.runtime.library_file import read_metadata
    from ibert_tvm.targets import get_target
    from ibert_tvm.targets.export import export_library
    from tests.runtime.conftest import TinyModel

    target = get_target("x86-64")
    models = [TinyModel(((1, length),)) for length in (8, 9)]
    made = [tvm.compile(m.module(), target=tvm.target.Target(target.tvm_target)) for m in models]

    def write(folder: Path, version: int) -> None:
        model = models[version]
        parameters = {"table": model.table, "bias": model.bias}
        export_library(made[version], parameters, model.metadata, target, folder / "model.so")

    return Writer(
        write,
        lambda folder: read_metadata(folder / "model.so").functions[0].seq_len - 8,
        ("model.so",),
    )


def _tune() -> Writer:
    from ibert_tvm.schedules.tiles import LinearTile
    from ibert_tvm.schedules.tuning import TuningDatabase
    from tests.tuning.test_database import TARGET, trial

    def write(folder: Path, version: int) -> None:
        database = TuningDatabase.create(folder / "db", TARGET)
        with database.writing():
            for k in range(1 + version):
                if len(database.trials) <= k:
                    database.append(trial(LinearTile(4, 1 + k)))

    def read(folder: Path) -> int:
        return len(TuningDatabase.open(folder / "db", TARGET).trials) - 1

    return Writer(write, read, ("db",))


def _begin() -> Writer:
    """A database where there was none: it holds two trials, or can be begun again."""
    tune = _tune()

    def read(folder: Path) -> int:
        there = (folder / "db" / "database.json").exists()
        return int(there and tune.read(folder) == 1)

    return Writer(lambda folder, version: tune.write(folder, 1) if version else None, read, ("db",))


WRITERS = {"begin": _begin, "save": _save, "export": _export, "tvm": _tvm, "tune": _tune}


class _Shim:
    """The counting library, which is loaded before every other."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.fault_bytes.restype = ctypes.c_size_t

    def arm(self, folder: Path, at: int, code: int) -> None:
        self.library.fault_arm(os.fsencode(folder), at, code)

    def disarm(self) -> int:
        return int(self.library.fault_disarm())


def _in_child(work: Callable[[], None]) -> tuple[str, int]:
    """How a child process ended: done, refused, internal or killed."""
    from ibert_tvm.common.errors import IbertError

    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except IbertError:
            code = _REFUSED
        except BaseException:
            traceback.print_exc()
            code = _INTERNAL
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed", os.WTERMSIG(status)
    return {0: "done", _REFUSED: "refused"}.get(os.WEXITSTATUS(status), "internal"), 0


def check(writer: Writer, place: Path, shim: _Shim, at: int, code: int) -> list[str]:
    """Write with the `at`-th call failing; return what is wrong with what is left."""
    from ibert_tvm.common import files

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    writer.write(place, 0)
    shim.arm(place, at, code)

    def write() -> None:
        shim.library.fault_arm(os.fsencode(place), at, code)  # this process is the one to kill
        writer.write(place, 1)

    end, signal = _in_child(write)
    shim.disarm()
    name = f"{CODES[code]} at call {at}"
    wrong = []
    if (end, signal) not in {("killed", 9), ("done", 0), ("refused", 0)} or (
        code != 0 and end == "killed"
    ):
        wrong.append(f"{name}: the writer ended: {end} {signal or ''}")
    try:
        version = writer.read(place)
        if end == "done" and version != 1:
            wrong.append(f"{name}: it said that it wrote, and did not")
    except Exception as error:
        wrong.append(f"{name}: neither the old nor the new is there: {error!r}")
    # What is left over, if anything, a later run removes; within a minute it might be in use.
    files._LEFT_BEHIND_SECONDS = -1.0
    writer.write(place, 1)
    if writer.read(place) != 1:
        wrong.append(f"{name}: it cannot be written again")
    left = {path.name for path in place.rglob(".*")} | {path.name for path in place.iterdir()}
    if left != {*writer.listed}:
        wrong.append(f"{name}: {sorted(left)} are left")
    return wrong


def main(name: str, place: Path, first: int, step: int) -> None:
    """Print what is wrong, then how many calls there were and how many cases."""
    writer, shim, cases = WRITERS[name](), _Shim(), 0
    place.mkdir(exist_ok=True)
    writer.write(place, 0)
    shim.arm(place, 0, 0)
    writer.write(place, 1)
    calls = shim.disarm()
    for code in CODES:
        for at in range(1 + first, calls + 1, step):
            cases += 1
            for line in check(writer, place, shim, at, code):
                print(line, flush=True)
    print(f"{calls} calls, {cases} cases", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
