"""Become another command, one that the kernel ends with the process that started it.

    python benchmarks/child.py PARENT_PID COMMAND...

Asked for between fork and exec (``preexec_fn``), this would cost a benchmark its Ctrl-C: Python
then runs hooks of its own around the fork, and an exception that a signal raises in a hook is
printed and dropped.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel, then replace this process; exits with 1 if the parent is gone already."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it was gone before the kernel was asked
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
