"""Fuzzing that follows coverage: files that reach new code of a reader are damaged further.

    python -m tests.fuzz.coverage --reader artefact --seconds 3600 --corpus build/fuzz

Damage is that of `tests.fuzz.mutation`, and digests are made right again as there; which files are
worth more of it, says libFuzzer (extra `fuzz`). The corpus stays, and a later run goes on with it;
so do the counts of ``--output tests/fuzz/coverage.json``. Files of a finding lie beside the corpus,
and ``--show FILE`` writes them out and reads them once. An empty corpus begins with the files of
``tests/fuzz/corpus``, which ``--keep`` writes: as few of a corpus as reach all that it reaches.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from tests.fuzz.worker import damage
from tests.processes import ROOT

KEPT = Path(__file__).parent / "corpus"
"""An archive for each reader, of files that reach all of its code that fuzzing found."""
CLOCK_SECONDS = 100
"""For one file, by the clock."""
MEMORY_MIB = 1024
"""For the reading of one file, on top of what the process has when everything is imported."""
_MOST_BYTES = 2**24
_MOST_FINDINGS = 20
_COUNTS = {
    "cases": r"stat::number_of_executed_units:\s*(\d+)",
    "peak_mib": r"stat::peak_rss_mb:\s*(\d+)",
    "edges": r"cov: (\d+)",
    "features": r"ft: (\d+)",
    "corpus": r"corp: (\d+)",
}


def packed(files: dict[str, bytes]) -> bytes:
    """Files as the one string of bytes that libFuzzer keeps."""
    parts = [b""]
    for name, content in files.items():
        parts += [len(name.encode()).to_bytes(2, "little"), name.encode()]
        parts += [len(content).to_bytes(4, "little"), content]
    return b"".join(parts)


def unpacked(data: bytes) -> dict[str, bytes]:
    """The inverse; empty for what is no such string."""
    files, at = {}, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        name = data[at + 2 : at + 2 + size].decode("utf-8", "replace")
        at += 2 + size
        size = int.from_bytes(data[at : at + 4], "little")
        content = data[at + 4 : at + 4 + size]
        at += 4 + size
        if at > len(data) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
            return {}
        files[name] = content
    return files


def damaged_again(data: bytes, most: int, seed: int, name: str) -> bytes:
    """Damage packed files of a reader once more, or whole ones where there are none yet."""
    from tests.fuzz.readers import READERS

    rng = random.Random(seed)
    whole = rng.choice(READERS[name].seeds())
    try:
        files, _ = damage(name, unpacked(data) or whole, rng)
    except Exception:
        files, _ = damage(name, whole, rng)  # of some files too little is left to be damaged so
    found = packed(files)
    return found if len(found) <= most else data


def read_packed(data: bytes, name: str) -> None:
    """Let a reader read packed files; whatever is no named error is raised."""
    from ibert_tvm.common.errors import IbertError
    from tests.fuzz.reader import write_files
    from tests.fuzz.readers import READERS

    files = unpacked(data)
    if not files:
        return
    with tempfile.TemporaryDirectory(prefix="ibert-fuzz-") as place:
        write_files(Path(place), files)
        try:
            READERS[name].read(Path(place))
        except IbertError as error:
            assert str(error), "an error without a word"


def kept(name: str) -> dict[str, bytes]:
    """Packed files of a reader that are in the repository, by what they are called there."""
    file = KEPT / f"{name}.tar.xz"
    if not file.is_file():
        return {}
    with tarfile.open(file) as archive:
        members = ((info.name, archive.extractfile(info)) for info in archive)
        return {member: stream.read() for member, stream in members if stream is not None}


def keep(name: str, folder: Path) -> int:
    """Write `kept` from the corpus of a reader; returns how many files those are."""
    with tempfile.TemporaryDirectory(prefix="ibert-fuzz-") as place:
        few, program = Path(place) / "few", Path(place) / "fuzz"
        few.mkdir()
        # libFuzzer calls the program that it is in, once more after each crash.
        inside = f"{sys.executable} -m {__spec__.name} --merge {name}"
        program.write_text(f'#!/bin/sh\nexec {inside} "$0" "$@"\n')
        program.chmod(0o755)
        options = ["-merge=1", f"-max_len={_MOST_BYTES}"]
        subprocess.run(
            [program, *options, few, folder / name], cwd=ROOT, capture_output=True, check=True
        )
        KEPT.mkdir(exist_ok=True)
        found = sorted(few.iterdir())
        with tarfile.open(KEPT / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for path in found:
                content = path.read_bytes()
                info = tarfile.TarInfo(path.name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return len(found)


def follow(name: str, seconds: float, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Fuzz one reader for some time, in child processes.

    Parameters
    ----------
    name : str
        Of `tests.fuzz.readers.READERS`.
    seconds : float
        By the clock, of all children together.
    folder : Path
        Where the corpora and the findings of all readers are.
    seed : int
        Of libFuzzer's choices, which are the same for the same corpus and code; 0 for others each
        time.

    Returns
    -------
    dict
        ``cases``, ``seconds``, ``peak_mib``, ``edges`` and ``features`` of the reader's code that
        were reached, ``corpus``: files kept, and ``findings``: file, and what was wrong.
    """
    corpus, found = folder / name, folder / f"{name}-findings"
    for place in (corpus, found):
        place.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = dict.fromkeys(_COUNTS, 0) | {"findings": []}
    started = time.monotonic()
    known = {*found.iterdir()}
    while (left := seconds - (time.monotonic() - started)) > 0:
        command = [sys.executable, "-m", __spec__.name, "--inside", name, str(corpus), str(found)]
        done = subprocess.run(
            [*command, str(max(int(left), 1)), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # tracebacks are on one of them, counts on the other
            check=False,
            # It ends by itself, unless it hangs outside of reading.
            timeout=left + 10 * CLOCK_SECONDS,
        )
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        said = "\n".join(line for line in lines if not line.startswith("INFO: Instrumenting"))
        for key, pattern in _COUNTS.items():
            number = int(([*re.findall(pattern, said)] or ["0"])[-1])
            result[key] = result[key] + number if key == "cases" else max(result[key], number)
        new = sorted({*found.iterdir()} - known)
        known |= {*new}
        result["findings"] += [{"file": path.name, "what": said[-3000:]} for path in new]
        # A case of the corpus that fails ends every run, with the finding that is there already.
        again = any(path.name in said for path in known)
        if not new and done.returncode and not again:
            raise RuntimeError(f"fuzzing {name} failed itself: {said[-3000:]}")
        if not new or len(result["findings"]) >= _MOST_FINDINGS:
            break
    return result | {"seconds": round(time.monotonic() - started)}


def _inside(name: str, corpus: str, found: str, seconds: str, seed: str) -> None:
    """In a child: import what reads with instrumented code, and hand over to libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["ibert_tvm"]):
        from tests.fuzz.readers import READERS

        seeds = [packed(whole) for whole in READERS[name].seeds()]
        for content in seeds:
            read_packed(content, name)  # what reading imports is imported
    if not any(Path(corpus).iterdir()):
        first = {f"whole-{number}": item for number, item in enumerate(seeds)} | kept(name)
        for called, content in first.items():
            (Path(corpus) / called).write_bytes(content)
    # The peak, as libFuzzer reads it: that of the process which started this one is a part of it.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    options = {
        "max_total_time": seconds,
        "seed": seed,
        "max_len": _MOST_BYTES,
        "timeout": CLOCK_SECONDS,
        "report_slow_units": CLOCK_SECONDS,
        "rss_limit_mb": peak + MEMORY_MIB,
        "print_final_stats": 1,
        "artifact_prefix": f"{found}/",
    }

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return damaged_again(data, most, seed, name)

    atheris.Setup(
        [sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), corpus],
        lambda data: read_packed(data, name),
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _merge(name: str, *arguments: str) -> None:
    """In a child of `keep`: libFuzzer with its own arguments, the program first."""
    import atheris

    with atheris.instrument_imports(include=["ibert_tvm"]):
        from tests.fuzz.readers import READERS

        for whole in READERS[name].seeds():
            read_packed(packed(whole), name)
    atheris.Setup([*arguments], lambda data: read_packed(data, name))
    atheris.Fuzz()


def joined(before: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Counts of a reader in two runs."""
    sums = ("cases", "seconds", "findings")
    return {k: before[k] + v if k in sums else max(before[k], v) for k, v in result.items()}


def _note(name: str, result: dict[str, Any], document: dict[str, Any], output: Path | None) -> int:
    """Print what a reader's run gave and add it to the counts; returns the number of findings."""
    found = len(result["findings"])
    print(name, {**result, "findings": found}, flush=True)
    for finding in result["findings"]:
        print(finding["file"], finding["what"], sep="\n", flush=True)
    readers = document["readers"]
    readers[name] = joined(readers[name], result) if name in readers else result
    if output is not None:
        from tests.fuzz.__main__ import versions

        document["versions"] = versions()
        output.write_text(json.dumps(document, indent=1) + "\n")
    return found


def main() -> int:
    """Fuzz readers; returns 1 where something was found."""
    from tests.fuzz.reader import write_files
    from tests.fuzz.readers import READERS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("--reader", choices=READERS, action="append", help="by default all")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--jobs", type=int, default=1, help="readers at once")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choices; 0 for others each time"
    )
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--output", type=Path, help="the counts as JSON, which go on")
    parser.add_argument("--show", type=Path, metavar="FILE", help="read a finding of --reader once")
    parser.add_argument("--keep", action="store_true", help="write tests/fuzz/corpus, fuzz nothing")
    given = parser.parse_args()
    names = given.reader or list(READERS)
    if given.show is not None:
        write_files(Path.cwd() / given.show.name, unpacked(given.show.read_bytes()))
        read_packed(given.show.read_bytes(), names[0])
        return 0
    if given.keep:
        for name in names:
            print(name, keep(name, given.corpus.resolve()), flush=True)
        return 0
    document: dict[str, Any] = {"readers": {}}
    if given.output is not None and given.output.is_file():
        document = json.loads(given.output.read_text())

    def fuzz(name: str) -> tuple[str, dict[str, Any]]:
        return name, follow(name, given.seconds, given.corpus.resolve(), given.seed)

    with ThreadPool(given.jobs) as pool:
        results = pool.imap_unordered(fuzz, names)
        found = sum(_note(*result, document, given.output) for result in results)
    return int(found > 0)


if __name__ == "__main__":
    inside = {"--inside": _inside, "--merge": _merge}.get("".join(sys.argv[1:2]))
    if inside is not None:
        inside(*sys.argv[2:])
    sys.exit(main())
