"""Completion in shells, which neither TVM nor torch may make wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import examples

# Typer ends the process when it has answered, so the modules are told on the way out.
_SCRIPT = """
import atexit, sys
heavy = ('tvm', 'torch', 'transformers', 'numpy')
atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr))
from ibert_tvm.cli import main
sys.exit(main([]))
"""


def _complete(line: str) -> list[str]:
    """What bash is told after `line`, whose last word is begun."""
    environment = {
        **os.environ,
        "_IBERT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    return done.stdout.split()


_BEGUN = ("ibert compile m --target cort", [*(f"cortex-m{n}" for n in (0, 3, 33, 4, 55, 7, 85))])


@pytest.mark.parametrize(
    ("line", "expected"),
    examples(
        [
            _BEGUN,
            ("ibert co", ["compile"]),
            ("ibert tune m --target t4+a1", ["t4+a100"]),
            ("ibert quantize m --preset ", ["accurate", "paper", "released"]),
            ("ibert quantize m --fidelity f", ["fast"]),
            ("ibert verify --em", ["--emulate"]),
            ("ibert compile ", []),  # files, which the shell completes itself
        ],
        _BEGUN,
        unpack=True,
    ),
)
def test_words(line: str, expected: list[str]) -> None:
    assert _complete(line) == expected


def test_the_script_for_bash_works_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "ibert"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ibert_tvm "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(ibert --show-completion bash)"\n'
        "COMP_WORDS=(ibert compile m --target rp); COMP_CWORD=4\n"
        "_ibert_completion ibert; echo ${COMPREPLY[@]}; complete -p ibert\n"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "SHELL": "/bin/bash", "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    # `-o default`: where nothing is offered, bash completes names of files.
    assert done.stdout == "rpi4\ncomplete -o default -F _ibert_completion ibert\n", done.stderr
