"""`ibert serve`: compiled models behind HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option, echo

from ..common.errors import UsageError
from ..serve.limits import Limits
from .options import DeviceOption, MaybeOne
from .result import CommandResult
from .signature import Settings

_KEY = "IBERT_API_KEY"
_LIMITS = Settings(
    {
        "batch_tokens": Option(min=1),
        "queue_tokens": Option(min=1),
        "requests": Option("--max-requests", min=1),
        "texts": Option("--max-texts", min=1),
        "characters": Option("--max-characters", min=1),
        "body_bytes": Option("--max-body", min=1),
        "connections": Option("--max-connections", min=1),
        "timeout_seconds": Option("--timeout", min=0.001),
    },
    without=("head_bytes", "head_seconds", "stop_seconds"),
)


def command(
    models: list[Path],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8000,
    threads: MaybeOne = None,
    workers: Annotated[int, Option(min=0)] = 1,
    device: DeviceOption = None,
    limits: Annotated[Limits, _LIMITS],
) -> CommandResult:
    """Serve models: /v1/embeddings as OpenAI's, /rerank as Cohere's, /classify.

    Also /health, /metrics for Prometheus, and /docs. Stops on SIGTERM or Ctrl-C,
    when requests that run are answered. With a key in the environment variable
    IBERT_API_KEY, clients have to send it. A worker that dies is started again,
    and what it was computing is computed again. SIGHUP, and with a key POST /reload,
    load the files again and lose no request.

    Parameters
    ----------
    models
        Libraries that `ibert compile` wrote; a model is called like its file.
    host
        Address to listen on; the default is reached from this machine only.
    port
        Port; 0 takes a free one.
    threads
        Threads of a model; by default all processors.
    workers
        Processes that compute a model; 0: the server's own.

    Examples
    --------
    ibert serve minilm.so --port 8000
    ibert serve minilm.so reranker.so --workers 2
    """
    from ..encoder import Encoder
    from ..progress import progress
    from ..serve.models import load_copy
    from ..serve.server import listen, serve

    names = [path.name.removesuffix(".so").removesuffix(".ibert") for path in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two models are called {twice[0]}",
            why="clients choose a model by the name of its file",
            todo="rename one of the files",
        )
    key = os.environ.get(_KEY) or None
    files = dict(zip(names, models, strict=True))

    def load(name: str) -> Encoder:
        return load_copy(files[name], threads, device)

    with listen(host, port) as socket, progress("loading"):
        encoders = {name: load(name) for name in names}
        address = "http://{}:{}".format(*socket.getsockname()[:2])

        def ready() -> None:
            echo(f"serving {', '.join(names)} on {address}", err=True)

        answered = serve(encoders, socket, limits, key, ready, workers, load)
    document = {"address": address, "models": names, "requests": answered}
    return CommandResult(document, [f"stopped; answered {answered} requests on {address}"])
