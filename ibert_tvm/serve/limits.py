"""How much a server takes at a time, so that its memory is bounded whatever clients do."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..common.errors import UsageError


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes
    ----------
    batch_tokens
        Tokens of all requests that are computed at once.
    queue_tokens
        Tokens that may wait for a model; then requests get 429.
    requests
        Requests at a time, of all models; one more gets 429 before it is read.
    texts
        Texts of a request.
    characters
        Characters of a text: tokenizers take seconds for a million.
    body_bytes
        Bytes of a request.
    connections
        Connections at a time; one more ends the one that has asked nothing for longest.
    head_bytes
        Bytes of a request's headers.
    head_seconds
        Seconds until a new connection has sent the headers of a request, and until those of a next
        request are complete once they begin.
    timeout_seconds
        Seconds until a request is given up with 503, and is not computed any more.
    stop_seconds
        Time for requests that run when the server is told to stop.

    Raises
    ------
    UsageError
        If one of them is not positive.
    """

    batch_tokens: int = 4096
    queue_tokens: int = 131072
    requests: int = 256
    texts: int = 512
    characters: int = 65536
    body_bytes: int = 2**20
    connections: int = 1024
    head_bytes: int = 65536
    head_seconds: float = 10.0
    timeout_seconds: float = 60.0
    stop_seconds: float = 30.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise UsageError(
                    f"{item.name.replace('_', ' ')} is {value}", todo="give a positive number"
                )
