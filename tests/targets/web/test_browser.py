"""A package in a headless Chromium: the bits of the specification, and weights that are kept."""

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
from typing import ClassVar

import numpy as np
import pytest

from tests.arm.packages import inputs_for, reference
from tests.report.browser import chromium

from .packages import VOCABULARY, tiny_bert, tiny_package

pytestmark = pytest.mark.slow  # a browser takes seconds to start

_PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const send = (body) => fetch("/result", { method: "POST", body: JSON.stringify(body) });
try {
  const { load } = await import("./index.js");
  const first = await load();
  const again = await load();
  const texts = TEXTS;
  const found = [first, again].map((model) => model.embed(texts).map((one) => [...one.values]));
  const cache = await caches.open("ibert-models");
  for (const kept of await cache.keys()) {
    if (kept.url.includes("weights")) await cache.put(kept, new Response(new Uint8Array(9)));
  }
  await load();
  await send({ found });
} catch (error) {
  await send({ error: String(error) });
}
</script>"""


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, counts what is asked for, and takes one result."""

    asked: ClassVar[Counter[str]] = Counter()
    results: ClassVar[queue.Queue[dict[str, object]]] = queue.Queue()

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        super().do_GET()

    def do_POST(self) -> None:
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_page_gives_the_bits_of_the_specification(tmp_path: Path) -> None:
    browser, quantized = chromium(), tiny_bert()
    site = tmp_path / "site"
    shutil.copytree(tiny_package(), site)
    texts = [[5, 6, 7], [8] * 16, [9, 10]]
    (site / "index.html").write_text(_PAGE.replace("TEXTS", json.dumps(texts)), encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/index.html"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'p'}"]
    with subprocess.Popen([browser, *flags, address], stderr=subprocess.DEVNULL) as process:
        try:
            result = _Handler.results.get(timeout=120)
        finally:
            process.terminate()
    server.shutdown()
    server.server_close()
    assert "error" not in result, result
    given = [inputs_for(quantized.input_names, len(ids), 0, VOCABULARY) for ids in texts]
    for inputs, ids in zip(given, texts, strict=True):
        inputs["input_ids"][:], inputs["token_type_ids"][:] = ids, 0
    expected = [reference(quantized, inputs)[0][0] for inputs in given]
    np.testing.assert_array_equal(result["found"], [expected, expected])
    # The second time all is in the cache; what was changed there is fetched again.
    assert _Handler.asked["/model.wasm"] == 1
    assert _Handler.asked["/weights.bin"] == 2
