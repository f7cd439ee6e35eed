"""What every target of the Makefile has in common."""

from __future__ import annotations

import os

from tests.processes import ROOT, run_captured

_RULE = """include Makefile
shown: ; @echo "$${PYTHONDONTWRITEBYTECODE-unset}"
"""


def test_what_python_compiled_is_kept_whatever_the_environment_says() -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["make", "--silent", "--no-print-directory", "--file=-", "shown"]
    done = run_captured(command, check=True, cwd=ROOT, env=environment, input=_RULE)
    assert done.stdout.strip() == "unset"
