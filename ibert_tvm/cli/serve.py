"""`ibert serve`: compiled models behind HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, echo

from ..common.errors import UsageError
from .options import DeviceOption, JsonFlag, VerboseFlag
from .result import CommandResult

_KEY = "IBERT_API_KEY"
_PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "orjson")


def command(
    models: Annotated[
        list[Path],
        Argument(help="Libraries that `ibert compile` wrote; a model is called like its file."),
    ],
    host: Annotated[
        str, Option(help="Address to listen on; the default is reached from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    threads: Annotated[
        int | None, Option(min=1, help="Threads of a model; by default all processors.")
    ] = None,
    workers: Annotated[
        int, Option(min=0, help="Processes that compute a model; 0: the server's own.")
    ] = 1,
    device: DeviceOption = None,
    batch_tokens: Annotated[
        int, Option(min=1, help="Tokens of all requests that are computed at once.")
    ] = 4096,
    queue_tokens: Annotated[
        int, Option(min=1, help="Tokens that may wait for a model; then requests get 429.")
    ] = 131072,
    max_requests: Annotated[
        int, Option(min=1, help="Requests at a time; one more gets 429.")
    ] = 256,
    max_texts: Annotated[int, Option(min=1, help="Texts of a request.")] = 512,
    max_body: Annotated[int, Option(min=1, help="Bytes of a request.")] = 2**20,
    timeout: Annotated[
        float, Option(min=0.001, help="Seconds until a request is given up with 503.")
    ] = 60.0,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Serve models: /v1/embeddings as OpenAI's, /rerank as Cohere's, /classify.

    Also /health, /metrics for Prometheus, and /docs. Stops on SIGTERM or Ctrl-C,
    when requests that run are answered. With a key in the environment variable
    IBERT_API_KEY, clients have to send it. A worker that dies is started again,
    and what it was computing is computed again.
    """
    from ..frontend.errors import require

    require(
        *_PACKAGES,
        to="ibert serve",
        why="the packages of a server are optional",
        todo="pip install 'ibert-tvm[serve]'",
        where="ibert serve",
    )
    from ..encoder import Encoder
    from ..serve.limits import Limits
    from ..serve.server import listen, serve
    from .progress import progress

    limits = Limits(
        batch_tokens, queue_tokens, max_requests, max_texts, max_body, timeout_seconds=timeout
    )
    names = [path.name.removesuffix(".so").removesuffix(".ibert") for path in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two models are called {twice[0]}",
            why="clients choose a model by the name of its file",
            todo="rename one of the files",
        )
    key = os.environ.get(_KEY) or None
    with listen(host, port) as socket, progress("loading"):
        encoders = {
            name: Encoder(path, num_threads=threads, device=device)
            for name, path in zip(names, models, strict=True)
        }
        address = "http://{}:{}".format(*socket.getsockname()[:2])

        def ready() -> None:
            echo(f"serving {', '.join(names)} on {address}", err=True)

        answered = serve(encoders, socket, limits, key, ready, workers)
    document: dict[str, Any] = {"address": address, "models": names, "requests": answered}
    return CommandResult(document, [f"stopped; answered {answered} requests on {address}"])
