"""Boards on the network: connecting, running libraries, timing kernels.

A board runs TVM's RPC server, alone or registered with a tracker that hands out boards by a key.
The connection lives in a process of its own (`worker`), because a call over it blocks: `Board`
talks to that process with timeouts, so that a board that hangs never hangs its user.
"""

from .address import Address, BoardError, find_server
from .board import Board
from .processor import BoardDescription, check_board
