"""Random programs for the record, which go on where they stopped.

nice -n 15 python -m tests.programs --count 10000 --seed 0 --output programs.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from ibert_tvm.targets import get_target
from ibert_tvm.targets.emulation import runs_here

from .comparison import TARGETS, check
from .generator import random_program

CHAINS = 8


def main() -> None:
    """Check programs of one seed after another; write what was found after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="Programs in all.")
    parser.add_argument("--seed", type=int, default=0, help="The first.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="When to stop.")
    parser.add_argument("--output", type=Path, default=Path("programs.json"))
    given = parser.parse_args()
    targets = [
        name for name, (_, emulated) in TARGETS.items() if emulated or runs_here(get_target(name))
    ]
    document = {"chains": CHAINS, "first_seed": given.seed, "next_seed": given.seed, "programs": 0}
    document |= {"targets": {}, "operators": {}, "failures": []}
    if given.output.is_file():
        document = json.loads(given.output.read_text())
    end = time.monotonic() + given.seconds
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
        given.output.write_text(json.dumps(document, indent=1) + "\n")
        for failure in failures:
            print(failure, flush=True)
    print({key: document[key] for key in ("programs", "next_seed", "targets")})


if __name__ == "__main__":
    main()
