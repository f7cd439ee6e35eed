"""The process that holds a connection to a board.

When its parent goes, it finishes the call that it is in and closes the session: a TVM server whose
client vanishes in the middle of a call may accept no other one.
"""

from __future__ import annotations

import sys

from ..process import hide_torch, serve
from .session import Session


class _Holder:
    """The session, while there is one."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def handle(self, operation: str, values: tuple[object, ...]) -> object:
        """Get ready, open, close, or call a method of the session."""
        if operation == "start":
            import tvm.rpc  # noqa: F401  # what takes seconds here

            return None
        if operation == "open":
            self.close()
            self.session = Session(*values)  # type: ignore[arg-type]
            return None
        if operation == "close":
            self.close()
            return None
        return getattr(self.session, operation)(*values)

    def close(self) -> None:
        """Close the session."""
        session, self.session = self.session, None
        if session is not None:
            session.close()


if __name__ == "__main__":
    hide_torch()
    holder = _Holder()
    serve(int(sys.argv[1]), holder.handle, holder.close)
