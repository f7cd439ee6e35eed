"""Fine-tune MiniLM with the integers that will run, on a task made of Python's own documentation.

    make demo-train

The task: does a sentence document a class, a function or a module? Its samples are first sentences
of the docstrings of Python's standard library; all of one file are in one of the sets to learn
from, to choose by, and to test on. Every step is a command of `ibert`, printed before it runs:
fine-tuning in float and then with integers, quantising either, and comparing both with the float
model on the test set. Models stay in ``build/finetune``.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ibert_tvm.demo import find_model

SETS = {"train": 0.5, "dev": 0.1, "test": 0.4}
KINDS = {
    ast.ClassDef: "class",
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "function",
    ast.Module: "module",
}


def share(text: str) -> float:
    """A number in [0, 1) that follows from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def sentences() -> Iterator[tuple[str, str, str]]:
    """File, first sentence of a docstring on one line, and the kind of what it documents."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = str(path.relative_to(library))
        if re.search(r"(^|/)(site-packages|tests?|idlelib|lib2to3)/", name):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in old strings
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            kind = KINDS.get(type(node))
            text = (ast.get_docstring(node) or "").split("\n\n")[0] if kind else ""
            sentence = re.sub(r"\s+", " ", text).strip()
            if kind and 4 <= len(sentence.split()) <= 24 and '"' not in sentence:
                yield name, sentence, kind


def write_sets(folder: Path, samples: int) -> None:
    """Write train.tsv, dev.tsv, test.tsv and texts.txt, what scales are calibrated on.

    Parameters
    ----------
    folder : pathlib.Path
        Where to.
    samples : int
        Most to learn from; the other sets in proportion, and no class more than a third of a set.
    """
    seen: set[str] = set()
    sets: dict[str, list[tuple[str, str]]] = {name: [] for name in SETS}
    for file, sentence, kind in sorted(sentences(), key=lambda sample: share(sample[1])):
        place, chosen = share(file), "test"
        for name, part in SETS.items():
            if place < part:
                chosen = name
                break
            place -= part
        most = samples * SETS[chosen] / SETS["train"] / 3
        if sentence not in seen and sum(k == kind for _, k in sets[chosen]) < most:
            seen.add(sentence)
            sets[chosen].append((sentence, kind))
    for name, rows in sets.items():
        lines = ["text\tlabel", *("\t".join(row) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(rows)} sentences")
    texts = "".join(f"{text}\n" for text, _ in sets["train"][:256])
    (folder / "texts.txt").write_text(texts, encoding="utf-8")


def ibert(*words: object, json_wanted: bool = False) -> Any:
    """Run a command of `ibert`; returns what it wrote as JSON, if that is wanted."""
    arguments = [str(word) for word in words]
    print(f"\n$ ibert {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "ibert_tvm", *arguments]
    if not json_wanted:
        return subprocess.run(command, check=True)
    done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fine-tune with integers, and compare.")
    parser.add_argument("--model", type=Path, default=None, help="a folder; by default MiniLM")
    parser.add_argument("--folder", type=Path, help="an empty one [default: build/finetune, anew]")
    parser.add_argument("--samples", type=int, default=900, help="to learn from")
    parser.add_argument("--epochs", type=int, default=3, help="in float, and one with integers")
    options = parser.parse_args(arguments)
    folder = options.folder or Path("build/finetune")
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"--folder: {folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    write_sets(folder, options.samples)
    columns = ("--task", "classification", "--columns", "text=text,label=label")
    length = ("--seq-len", 32)
    tuned, floating = folder / "tuned", folder / "float"
    ibert(
        *("finetune", options.model or find_model(), "--data", folder, "-o", tuned),
        *("--float-output", floating, *columns, *length, "--batch", 32),
        *("--float-epochs", options.epochs, "--float-learning-rate", 1e-4),
        *("--epochs", 1, "--learning-rate", 1e-5),
    )
    texts = ("--calibration", folder / "texts.txt", *length)
    ibert("quantize", floating, "-o", folder / "calibrated.ibert", *texts)
    ibert("quantize", tuned, "-o", folder / "tuned.ibert")
    found = {
        name: ibert(
            *("eval", folder / f"{name}.ibert", "--against", floating, *columns, *length),
            *("--data", folder / "test.tsv"),
            json_wanted=True,
        )
        for name in ("calibrated", "tuned")
    }
    print("\nOn the test set, with the 95% interval of the paired difference from float:")
    for name, document in found.items():
        for metric in document["metrics"]:
            low, high = metric["interval"]
            print(
                f"  {metric['name']}: float {metric['float']:.2f}, integers {name} "
                f"{metric['integer']:.2f} ({metric['difference']:+.2f}: {low:+.2f} to {high:+.2f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
