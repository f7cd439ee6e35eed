"""The two functions of a tensor intrinsic, and telling TVM of it."""

from __future__ import annotations

Sources = tuple[str, str]
"""Text of the description and of the implementation."""


def sources_of(template: str, description: str, implementation: str, **sizes: object) -> Sources:
    """Fill in a template for both functions of an intrinsic, which differ in their bodies.

    Parameters
    ----------
    template
        TVMScript with ``{which}`` and ``{body}``.
    description, implementation
        The bodies.
    sizes
        What else the template asks for; what it does not ask for is left out.
    """
    bodies = {"description": description, "implementation": implementation}
    first, second = (
        template.format(which=which, body=body, **sizes) for which, body in bodies.items()
    )
    return first, second


def register(name: str, sources: Sources) -> str:
    """Register an intrinsic with TVM, replacing one of the same name.

    Parameters
    ----------
    name
        Name under which schedules use it.
    sources
        Text of the description and of the implementation.

    Returns
    -------
    str
        `name`.
    """
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = (from_source(source) for source in sources)
    TensorIntrin.register(name, description, implementation, override=True)
    return name
