"""One process of a fuzzing run: damaged files, one after the other, to one reader.

``python -m tests.fuzz.worker READER FIRST LAST SECONDS PROGRESS``

PROGRESS is a file that holds the number of the case that is being read, so that whoever waits for
this process knows what ended it; afterwards, the counts as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ALARM_SECONDS = 10
"""Of processor time for one file; who waits for the process looks at the clock."""
MEMORY_BYTES = 2**30
"""For the reading of one file, on top of what the process has when everything is imported."""
_MOST_FINDINGS = 20


def make_case(name: str, number: int) -> tuple[dict[str, bytes], bool, dict[str, bytes]]:
    """Return a damaged folder, whether it was repaired, and the whole one that it was made of."""
    from tests.fuzz.readers import READERS

    rng = random.Random(f"{name} {number}")
    whole = rng.choice(READERS[name].seeds())
    return *damage(name, whole, rng), whole


def damage(name: str, files: dict[str, bytes], rng: random.Random) -> tuple[dict[str, bytes], bool]:
    """Damage the files of a reader; and whether their digests were made right again."""
    from tests.fuzz.readers import READERS

    reader = READERS[name]
    files = reader.damage(files, rng)
    repaired = reader.repair is not None and rng.random() < 0.75
    if repaired and reader.repair is not None:
        files = reader.repair(files, rng)
    return files, repaired


def read_case(name: str, number: int, seconds: int = ALARM_SECONDS) -> str:
    """Let a reader read one case.

    Returns
    -------
    str
        ``"refused"`` or ``"accepted"``; else what is wrong, with its traceback.
    """
    from ibert_tvm.common.errors import IbertError
    from tests.fuzz.reader import write_files
    from tests.fuzz.readers import READERS

    reader = READERS[name]
    files, repaired, whole = make_case(name, number)
    with tempfile.TemporaryDirectory(prefix="ibert-fuzz-") as place:
        folder = Path(place)
        write_files(folder, files)
        # The signal ends the process, whatever code is running.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            meaning = reader.read(folder)
        except IbertError as error:
            return "refused" if str(error) else "an error without a word"
        except BaseException:
            return traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        checked = reader.repair is not None and not repaired
        if checked and not reader.same(meaning, _meaning(name, whole)):
            return "a change was not noticed: the digests are not right, and it means another thing"
    return "accepted"


_meanings: dict[tuple[str, bytes], object] = {}


def _meaning(name: str, whole: dict[str, bytes]) -> object:
    """What a whole folder means."""
    from tests.fuzz.reader import write_files
    from tests.fuzz.readers import READERS

    key = (name, b"".join(whole.values()))
    if key not in _meanings:
        with tempfile.TemporaryDirectory(prefix="ibert-fuzz-") as place:
            write_files(Path(place), whole)
            _meanings[key] = READERS[name].read(Path(place))
    return _meanings[key]


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(name: str, first: int, last: int, seconds: float, progress: Path) -> None:
    """Read cases `first` to `last`, or until the time is over."""
    from tests.fuzz.readers import READERS

    for whole in READERS[name].seeds():
        _meaning(name, whole)  # whole files are read, and what reading imports is imported
    _limit_memory()
    counts: dict[str, Any] = {"refused": 0, "accepted": 0, "findings": []}
    end = time.monotonic() + seconds
    number = first
    stream = os.open(progress, os.O_WRONLY | os.O_CREAT, 0o600)
    outside = Path(tempfile.mkdtemp(prefix="ibert-fuzz-outside-"))
    os.chdir(outside)
    while number < last and time.monotonic() < end and len(counts["findings"]) < _MOST_FINDINGS:
        os.pwrite(stream, f"{number:12}".encode(), 0)
        result = read_case(name, number)
        if list(outside.iterdir()):
            result = f"it wrote {[path.name for path in outside.iterdir()]}"
        if result in counts:
            counts[result] += 1
        else:
            counts["findings"].append({"case": number, "what": result})
        number += 1
    outside.rmdir()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    progress.write_text(json.dumps({**counts, "next": number, "peak_bytes": peak}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
