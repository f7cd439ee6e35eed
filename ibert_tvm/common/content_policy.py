"""The Content-Security-Policy of pages that hold all that they need."""

from __future__ import annotations

import base64
import hashlib


def content_policy(style: str, script: str, connect: str = "") -> str:
    """Let a page use nothing but its own style and script, which are known by their hashes.

    Parameters
    ----------
    style, script
        Contents of the page's only elements of these names.
    connect
        Where the script may send requests, for example ``'self'``; empty for nowhere.
    """
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    connecting = f"connect-src {connect}; " if connect else ""
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        f"{connecting}base-uri 'none'; form-action 'none'"
    )
