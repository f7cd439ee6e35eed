"""Serve this folder on http://localhost:8000, with the headers that let pages have threads."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Isolated(SimpleHTTPRequestHandler):
    """Python's own server, whose pages are cross-origin isolated."""

    def end_headers(self) -> None:
        """Add the two headers."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


if __name__ == "__main__":
    handler = partial(Isolated, directory=str(Path(__file__).parent))
    ThreadingHTTPServer(("127.0.0.1", 8000), handler).serve_forever()
