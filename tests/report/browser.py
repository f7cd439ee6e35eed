"""A page in a headless Chromium: what it became, and what its scripts complained about."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom"),
    # The frame below is another file, which no page may look into otherwise.
    "--allow-file-access-from-files",
)
_CONSOLE = re.compile(r"CONSOLE[:(]\d+\)?\] (.*)")
# The window of a browser is no narrower than 500 pixels; a frame is as wide as it is told to be.
_HARNESS = """<!doctype html><body>
<iframe id="page" src="{file}" width="{width}" height="900"></iframe><pre id="result"></pre>
<script>
addEventListener("load", () => {{
  const page = document.getElementById("page").contentDocument, window_ = page.defaultView;
  let result;
  try {{ result = (({probe})(page, window_)); }}
  catch (error) {{ result = {{error: String(error)}}; }}
  document.getElementById("result").textContent = JSON.stringify(result);
}});
</script>"""


@dataclass(frozen=True)
class Opened:
    """A page that was opened.

    Attributes
    ----------
    dom
        What it became, as HTML.
    console
        What was written there: errors of scripts, refusals of the policy.
    """

    dom: str
    console: list[str]


def chromium() -> str:
    """Path of the browser; the test is skipped without one, but not in CI."""
    path = shutil.which("chromium")
    if path is None and os.environ.get("CI"):
        pytest.fail("chromium is not installed, which .ci/run was to do")
    if path is None:
        pytest.skip("chromium is not installed")
    return path


def open_page(file: Path, folder: Path) -> Opened:
    """Open a file from disk, with a profile in `folder` that does not exist yet."""
    command = [chromium(), *_FLAGS, f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    shutil.rmtree(folder / "profile", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return Opened(done.stdout, _CONSOLE.findall(done.stderr))


def probe(file: Path, folder: Path, script: str, width: int) -> tuple[Any, list[str]]:
    """Run a function of (document, window) on a page of some width; its result and the console."""
    harness = folder / "harness.html"
    text = _HARNESS.format(file=escape(file.as_uri()), width=width, probe=script)
    harness.write_text(text, encoding="utf-8")
    opened = open_page(harness, folder)
    found = re.search(r'<pre id="result">(.*?)</pre>', opened.dom, re.DOTALL)
    assert found and found[1], opened.dom[-2000:]
    return json.loads(unescape(found[1])), opened.console
