"""The process that compiles candidates of tuning, for the stand-in GPU in place of a real one."""

from __future__ import annotations

import sys

from ibert_tvm.targets.process import hide_torch, serve

if __name__ == "__main__":
    hide_torch()
    from ibert_tvm.tuning.measure import handle
    from tests.cuda.stand_in_gpu import images_for_stand_in

    with images_for_stand_in():
        serve(int(sys.argv[1]), handle, lambda: None)
