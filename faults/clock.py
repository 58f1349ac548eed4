"""The wall clock of the processes under test: the command makes it jump while they run.

Python's `time.time` and `time.time_ns` jump, and so does all that asks the time by them. Clocks in C do not: a client
library that signs its requests, and the broker.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

_NAME: Final = "clock"
_OFFSET: Final = struct.Struct("=q")


def jump(scratch: Path, seconds: float) -> None:
    """Set the clocks of all processes of this folder to so many seconds off the machine's."""
    file = os.open(scratch / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, _OFFSET.pack(int(seconds * 1e9)), 0)
    finally:
        os.close(file)


def install(scratch: Path) -> None:
    """Give this process the clock of a folder. Call it before anything else is imported that asks the time."""
    if not (scratch / _NAME).exists():  # or a process that starts in the middle of a jump would end it for all
        jump(scratch, 0.0)
    with (scratch / _NAME).open("rb") as file:
        shared = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    true_ns = time.time_ns

    def time_ns() -> int:
        (offset,) = _OFFSET.unpack_from(shared)
        return true_ns() + int(offset)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
