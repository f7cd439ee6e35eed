"""Tests of what changed: `make check`.

A test is run if its file, or what it imports directly or not, differs from the main branch, in
commits or in the working tree. Files that are not Python, such as documents, select the tests
beside them and those that name them. The tests at the top of the folder look at the whole
checkout and are always run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.cache import sources
from tests.closure import ROOT, Sources


def changed_files(base: str, root: Path = ROOT) -> set[Path]:
    """Files that differ from where this branch left another, and new ones."""

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
        return [name for name in done.stdout.split("\0") if name]

    (fork,) = git("merge-base", base, "HEAD")
    names = git("diff", "--name-only", "-z", fork.strip())
    names += git("ls-files", "--others", "--exclude-standard", "-z")
    return {root / name for name in names}


def is_test(module: str) -> bool:
    """Whether pytest collects a module."""
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def affected(known: Sources, changed: Iterable[Path]) -> list[Path]:
    """Files of the tests that changes can break, nearest to the changes first."""
    changed = {path.relative_to(known.root) for path in changed}
    tests = {name: path for name, path in known.files.items() if is_test(name)}
    conftests = [name for name in known.files if name.endswith(".conftest")]
    readers: dict[tuple[str, str], set[tuple[str, str]]] = {}
    pending = [(name, "") for name in tests]
    seen = set(pending)
    while pending:
        node = pending.pop()
        reached = set(known.reached(node))
        if node[0] in tests:
            above = (one for one in conftests if node[0].startswith(one.removesuffix("conftest")))
            reached |= {(one, "") for one in above}
        for other in reached:
            readers.setdefault(other, set()).add(node)
        pending += reached - seen
        seen |= reached
    known.keep()
    reach = [node for node in seen if known.files[node[0]].relative_to(known.root) in changed]
    for module in known.files:
        if changed & {path.relative_to(known.root) for path in known.data_beside(module)}:
            reach.append((module, ""))
    reach += [(name, "") for name, path in tests.items() if _is_about(path, known.root, changed)]
    order = dict.fromkeys(reach)
    for node in reach:  # grows: those that read what is in it
        new = readers.get(node, set()) - order.keys()
        order.update(dict.fromkeys(sorted(new)))
        reach += sorted(new)
    found = dict.fromkeys(known.files[name] for name, _ in order if name in tests)
    found |= dict.fromkeys(path for path in tests.values() if path.parent == known.root / "tests")
    return list(found)


def _is_about(test: Path, root: Path, changed: set[Path]) -> bool:
    """Whether a test names, or lies beside, changed files that are not Python."""
    others = [one for one in changed if one.suffix != ".py"]
    if any(root / one.parent == test.parent for one in others):
        return True
    text = test.read_text(encoding="utf-8") if others else ""
    return any(f'"{part}"' in text for one in others for part in one.parts[-2:] if part != "tests")


def main() -> None:
    """Run them: arguments are the branch to compare with, a command, and its arguments."""
    base, *command = sys.argv[1:]
    files = affected(sources(), changed_files(base))
    sys.stderr.write(f"{len(files)} test files can tell what changed since {base}\n")
    if files:
        os.execvp(command[0], [*command, *(str(path.relative_to(ROOT)) for path in files)])


if __name__ == "__main__":
    main()
