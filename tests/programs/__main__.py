"""Random programs for the record, which go on where they stopped.

nice -n 15 python -m tests.programs --count 10000 --seed 0 --output programs.json

Seeds take targets in turns, of those that this machine runs or emulates; with each commit of the
record stands which these were. Seeds that failed before are checked again first; those that pass
are listed as mended. Where this machine does not run the target, a failure stays, with the commit
at which the programs compile.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.processes import ROOT, run_captured

from .comparison import TARGETS, check, refusal, runs
from .generator import random_program

CHAINS = 8


def commit() -> str:
    """What is checked: a commit, with ``-dirty`` where files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return run_captured(words, cwd=ROOT, check=True).stdout.strip()


def check_again(document: dict[str, Any], now: str) -> None:
    """Check what failed before: leave what fails still, and list what is mended."""
    before, document["failures"] = document["failures"], []
    for seed, target in sorted({(failure["seed"], failure["target"]) for failure in before}):
        if not runs(target):
            same = [one for one in before if (one["seed"], one["target"]) == (seed, target)]
            if not refusal(seed, document["chains"], target):
                same = [{**one, "compiles_at": now} for one in same]
            document["failures"] += same
            continue
        failures = [asdict(failure) for failure in check(seed, document["chains"], target)]
        document["failures"] += failures
        if not failures:
            why = next(failure["why"] for failure in before if failure["seed"] == seed)
            document["mended"].append({"seed": seed, "target": target, "at": now, "why": why})


def main() -> None:
    """Check programs of one seed after another; write what was found after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="Programs in all.")
    parser.add_argument("--seed", type=int, default=0, help="The first.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="When to stop.")
    parser.add_argument("--output", type=Path, default=Path("programs.json"))
    given = parser.parse_args()
    targets = [name for name in TARGETS if runs(name)]
    document = {"chains": CHAINS, "first_seed": given.seed, "next_seed": given.seed, "programs": 0}
    document |= {"commits": [], "targets": {}, "operators": {}, "failures": [], "mended": []}
    if given.output.is_file():
        document = json.loads(given.output.read_text())
    end = time.monotonic() + given.seconds
    now = commit()
    check_again(document, now)
    last = document["commits"][-1] if document["commits"] else {}
    if (last.get("commit"), last.get("targets")) != (now, targets):
        begun = {"commit": now, "first_seed": document["next_seed"], "targets": targets}
        document["commits"].append(begun)
    while document["programs"] < given.count and time.monotonic() < end:
        seed = document["next_seed"]
        target = targets[seed % len(targets)]
        program, _ = random_program(seed, CHAINS)
        failures = check(seed, CHAINS, target)
        document["failures"] += [asdict(failure) for failure in failures]
        document["programs"] += CHAINS
        document["next_seed"] = seed + 1
        document["targets"][target] = document["targets"].get(target, 0) + CHAINS
        met = Counter(step.operator.OP.removeprefix("integer.") for step in program.steps)
        counts = Counter(document["operators"]) + met
        document["operators"] = dict(sorted(counts.items()))
        write(given.output, document)
        for failure in failures:
            print(failure, flush=True)
    write(given.output, document)
    print({key: document[key] for key in ("programs", "next_seed", "targets")})
    print("not run here:", [name for name in TARGETS if name not in targets] or "none")


def write(output: Path, document: dict[str, Any]) -> None:
    """Replace the record: old or new, however the process ends."""
    new = output.with_name(f"{output.name}.new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(output)


if __name__ == "__main__":
    main()
