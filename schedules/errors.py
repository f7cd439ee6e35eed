"""Why a schedule rule did not apply."""

from ibert_tvm.common.errors import ExitCode, IbertError


class ScheduleError(IbertError):
    """No rule could schedule a kernel."""

    exit_code = ExitCode.TARGET
