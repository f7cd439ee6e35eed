"""Compiling the kernels that are being tried, in processes whose time is limited.

MetaSchedule's own builder imports TVM's stock intrinsics in every worker, which takes longer than
its timeout where torch is installed, and starts its workers anew for every batch. These processes
import what they need once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibert_tvm.targets.process import ProcessEnded, ProcessError, ServiceProcess, hide_torch, serve

if TYPE_CHECKING:
    from tvm import tirx

    from ibert_tvm.targets import TargetDescription

_START_SECONDS = 60.0
_WHY = "why: "


class KernelBuilder:
    """Builds kernels in a process of its own, so that the time of LLVM and nvcc is limited.

    Parameters
    ----------
    description
        The target.
    timeout
        Seconds that one kernel may take.

    Attributes
    ----------
    service
        Module that the process runs.
    """

    service = __spec__.name

    def __init__(self, description: TargetDescription, timeout: float) -> None:
        self.description, self.timeout = description, timeout
        self._process: ServiceProcess | None = None

    def build(self, kernel: tirx.PrimFunc, path: Path) -> str:
        """Build a kernel.

        Parameters
        ----------
        kernel
            Scheduled; its ``global_symbol`` is the name of the function in the library.
        path
            The library to write.

        Returns
        -------
        str
            Why it could not be built; empty if it was.
        """
        import tvm

        wait = self.timeout
        if self._process is None:
            self._process = ServiceProcess(self.service)
            wait += _START_SECONDS
        values = (tvm.ir.save_json(kernel), self.description, str(path))
        try:
            self._process.call("build", values, wait, 2 * wait)
        except TimeoutError:
            self.close()
            return f"it was not compiled within {wait:.0f} s"
        except ProcessEnded as error:
            self.close()
            return f"the compiler ended: {error}"
        except ProcessError as error:
            return _reason(str(error)) or error.kind
        except BaseException:
            self.close()
            raise
        return ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def _reason(text: str) -> str:
    """The line of an error that says why: ours are marked, of others it is the last."""
    lines = [line.strip() for line in text.strip().splitlines()]
    marked = [line.removeprefix(_WHY) for line in lines if line.startswith(_WHY)]
    return (marked or lines or [""])[-1]


def handle(operation: str, values: tuple[Any, ...]) -> None:
    """Build a kernel from its JSON, in the process; the one operation is ``build``."""
    import tvm

    import ibert_tvm.relay_passes.spec.q15  # noqa: F401 (registers the operator that kernels hold)
    from ibert_tvm.targets.kernel_library import build_kernel

    text, description, path = values
    build_kernel(tvm.ir.load_json(text), description, Path(path))


if __name__ == "__main__":
    hide_torch()
    serve(int(sys.argv[1]), handle, lambda: None)
