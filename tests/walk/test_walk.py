"""The first hour: every command of the README and the tutorials, in two kinds of installation.

Each document is typed in an empty folder, first with the extras that it says, where everything
succeeds; then with the runtime alone and the files of the first time, where each command succeeds
too or says in one line which extra it lacks.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.common.extras import EXTRAS
from tests.documents.blocks import INSTALLS, ROOT, blocks, commands, prepare, run
from tests.documents.test_documents import FIRST
from tests.extras import needs
from tests.installs import Installation, size

pytestmark = pytest.mark.slow(seconds=100)

README = ROOT / "README.md"
_MEGABYTE = 10**6
# A program that notes what the one beside the interpreter says, and how it ends.
_NOTING = """#!{python}
import json, signal, subprocess, sys

child = subprocess.Popen(["{program}", *sys.argv[1:]], stderr=subprocess.PIPE, text=True)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
said = child.communicate()[1]
sys.stderr.write(said)
with open("{notes}", "a") as notes:
    print(json.dumps([sys.argv[1:], child.returncode, said]), file=notes)
sys.exit(child.returncode)
"""
# Goes on after a failure, and notes the command.
_PATIENT = """set -uEo pipefail
trap 'printf "%s\\0" "$BASH_COMMAND" >> {failures}' ERR"""
_LACKS = re.compile(
    r"^(?:error|[\w.]+Error): .* needs \S+, which is not installed: pip install 'ib"
)


def install_commands(path: Path) -> list[str]:
    """What a document has a reader type for pip."""
    typed = [line for b in blocks(path) if b.reason == INSTALLS for line in commands(b.text)]
    return [line for line in typed if line.startswith("pip ")]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What the README's commands for a machine that only runs libraries install."""
    needs("fastapi")
    made = Installation(tmp_path_factory.mktemp("runtime"))
    made.type(install_commands(README))
    return made


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What `make setup` installs, and the extra that the README asks for besides."""
    made = Installation(tmp_path_factory.mktemp("setup"))
    (extras,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    made.type([f'pip wheel --no-deps -w dist .; pip install "$(echo dist/*.whl)[{extras},cuda]"'])
    return made


@pytest.mark.slow_cases(len(FIRST))
@pytest.mark.parametrize("path", FIRST, ids=lambda path: path.stem)
def test_documents_do_what_they_say(
    path: Path, runtime: Installation, setup: Installation, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="importing a model needs torch")
    from tests.documents.small_model import small_model

    complete = setup
    if path != README and (typed := install_commands(path)):
        (tmp_path / "installation").mkdir()
        complete = Installation(tmp_path / "installation")
        complete.type(typed)
    folder, model = tmp_path / "folder", small_model()
    folder.mkdir()
    prepare(folder)
    done = run(path, folder, model, programs=complete.python.parent)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    noting, notes, failures = (tmp_path / name for name in ("noting", "notes", "failures"))
    noting.mkdir()
    failures.touch()
    for name in ("ibert", "python"):
        program = runtime.python.with_name(name)
        text = _NOTING.format(python=complete.python, program=program, notes=notes)
        (noting / name).write_text(text)
        (noting / name).chmod(0o755)
    prelude = _PATIENT.format(failures=failures)
    done = run(path, folder, model, programs=noting, prelude=prelude)
    said = [json.loads(line) for line in notes.read_text().splitlines()]
    assert said, done.stderr
    lacking = [(words, text) for words, code, text in said if code != 0]
    for words, text in lacking:
        last = text.rstrip().splitlines()[-1]
        assert _LACKS.match(last), (words, text)
        assert len(text.splitlines()) == 1 or text.startswith("Traceback"), (words, text)
    failed = failures.read_text().split("\0")[:-1]
    others = [line for line in failed if not re.match(r"(\w+=\S* )*(ibert|python) ", line)]
    assert others == [], done.stderr


def test_the_runtime_is_small_and_enough(runtime: Installation) -> None:
    (site,) = runtime.python.parents[1].glob("lib/python*/site-packages")
    assert size(site) < 130 * _MEGABYTE
    names = {path.name for path in site.iterdir()}
    assert not names & {"tvm", "torch", "scipy", "uvloop"}
    doctor = [runtime.python.with_name("ibert"), "doctor", "--json"]
    shown = json.loads(subprocess.run(doctor, check=True, capture_output=True).stdout)
    states = {extra["name"]: extra["state"] for extra in shown["extras"]}
    assert shown["ok"] and list(states) == list(EXTRAS)
    assert states["run"] == "ok" and states["compiler"] == states["torch"] == "missing"
