"""A disk of 64 MiB for brokers that are files, so that it can be full without harm: a tmpfs, where one may mount it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from redelivery_conformance.harness import NotHere, Runtime, RuntimeKind
from redelivery_sqlite.testing import SqliteHarness, SqliteRuntime

#: Bytes of the disk, and of the largest that is ever filled.
SMALL: Final = 64 << 20
_WRITE: Final = 1 << 12


class SmallDiskHarness(SqliteHarness):
    """Files on a small disk if one can be mounted, else in the scratch folder."""

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": SmallDiskRuntime}


class SmallDiskRuntime(SqliteRuntime):
    """Files in a folder; see `SmallDiskHarness`."""

    def __init__(self, scratch: Path) -> None:
        super().__init__("embedded", scratch)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "redelivery-faults", str(scratch)]
        self._unmount = ["umount", str(scratch)]
        self._mounted = _ran(command)

    def close(self) -> None:
        super().close()
        if self._mounted:
            self._mounted = not _ran(self._unmount)


def check_small(folder: Path) -> None:
    """Raise NotHere if filling the disk of a folder would harm others."""
    disk = os.statvfs(folder)
    if disk.f_blocks * disk.f_frsize > SMALL:
        raise NotHere("a small disk that can be filled without harm: this user may not mount a tmpfs")


def fill(folder: Path) -> Path:
    """Fill the disk of a folder; return the file to remove. Raises NotHere: it is not a small one."""
    check_small(folder)
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for _ in range(SMALL // _WRITE + 1):
            try:
                file.write(bytes(_WRITE))
            except OSError:
                break
    return filler


def _ran(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - named here
    except OSError:
        return False
