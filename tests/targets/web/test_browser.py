"""Pages in a headless Chromium: the bits of the specification, kept files, and the example."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.arm.packages import inputs_for, reference
from tests.processes import PATIENCE
from tests.report.browser import chromium

from .packages import VOCABULARY, tiny_bert, tiny_package

pytestmark = pytest.mark.slow  # a browser takes seconds to start
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "browser" / "index.html"

_SEND = """const send = (body) =>
  fetch("/result", { method: "POST", body: JSON.stringify(body) });
addEventListener("error", (event) => send({ error: event.message }));
addEventListener("unhandledrejection", (event) => send({ error: String(event.reason) }));
"""
_LOADS = """
const { load } = await import("./index.js");
const first = await load();
const again = await load();
const texts = TEXTS;
const { threads, oneThreadBecause } = again;
const found = [first, again].map((model) => model.embed(texts).map((one) => [...one.values]));
const cache = await caches.open("ibert-models");
for (const kept of await cache.keys()) {
  if (kept.url.includes("weights")) await cache.put(kept, new Response(new Uint8Array(9)));
}
await load();
await send({ found, threads, oneThreadBecause, processors: navigator.hardwareConcurrency });
"""
_ASKS = """
const input = document.querySelector("input");
while (input.disabled) await new Promise((resolve) => setTimeout(resolve, 50));
input.value = "QUERY";
document.querySelector("form").requestSubmit();
await send({ found: [...document.querySelectorAll("li")].map((item) => item.textContent) });
"""


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, counts what is asked for, and takes one result."""

    isolated: ClassVar = False
    asked: ClassVar[Counter[str]] = Counter()
    results: ClassVar[queue.Queue[dict[str, Any]]] = queue.Queue()

    def end_headers(self) -> None:
        if self.isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        super().do_GET()

    def do_POST(self) -> None:
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def visit(site: Path, page: str, script: str, profile: Path) -> tuple[dict[str, Any], Counter[str]]:
    """What the script of a page of a site sends, and how often each file was asked for."""
    browser = chromium()
    module = f'<script>{_SEND}</script>{page}<script type="module">{script}</script>'
    (site / "index.html").write_text(module, encoding="utf-8")
    _Handler.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/index.html"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    with subprocess.Popen([browser, *flags, address], stderr=subprocess.DEVNULL) as process:
        try:
            result = _Handler.results.get(timeout=PATIENCE)
        finally:
            process.terminate()
            server.shutdown()
            server.server_close()
    assert "error" not in result, result
    return result, _Handler.asked.copy()


@pytest.mark.parametrize("isolated", [False, True])
def test_a_page_gives_the_bits_of_the_specification(
    isolated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = tiny_bert()
    monkeypatch.setattr(_Handler, "isolated", isolated)
    site = tmp_path / "site"
    shutil.copytree(tiny_package(), site)
    texts = [[5, 6, 7], [8] * 16, [9, 10]]
    script = _LOADS.replace("TEXTS", json.dumps(texts))
    result, asked = visit(site, "<!doctype html>", script, tmp_path / "profile")
    given = [inputs_for(quantized.input_names, len(ids), 0, VOCABULARY) for ids in texts]
    for inputs, ids in zip(given, texts, strict=True):
        inputs["input_ids"][:], inputs["token_type_ids"][:] = ids, 0
    expected = [reference(quantized, inputs)[0][0] for inputs in given]
    np.testing.assert_array_equal(result["found"], [expected, expected])
    alone = "the page is not cross-origin isolated"
    processors = min(result["processors"], 4)
    assert result["threads"] == (processors if isolated else 1)
    assert result["oneThreadBecause"] == (None if isolated or processors == 1 else alone)
    # The second time all is in the cache; what was changed there is fetched again.
    assert asked["/model.wasm"] == 1
    assert asked["/weights.bin"] == 2


def test_the_example_finds_texts_without_another_server(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(tiny_package(), site / "model")
    (site / "texts.txt").write_text("The cat sat.\n\nA dog ran.\nNothing of it.\n", "utf-8")
    page = EXAMPLE.read_text(encoding="utf-8")
    assert "//" not in page.replace("</", "").replace("// ", "")  # no address
    result, _ = visit(site, page, _ASKS.replace("QUERY", "A dog ran."), tmp_path / "profile")
    assert result["found"][0] == "1.000 A dog ran."
    assert len(result["found"]) == 3
