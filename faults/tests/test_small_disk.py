"""Only a small disk is ever filled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults import small_disk
from redelivery_conformance.harness import NotHere


def test_a_disk_that_others_use_is_never_filled(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).total <= small_disk.SMALL:
        pytest.fail("this test needs a folder on an ordinary disk")
    with pytest.raises(NotHere, match="may not mount"):
        small_disk.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_small_disk_can_be_full_and_is_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    runtime = small_disk.SmallDiskRuntime(folder)
    if shutil.disk_usage(folder).total > small_disk.SMALL:
        pytest.skip("only a user that may mount a tmpfs has one")
    filler = small_disk.fill(folder)
    with pytest.raises(OSError, match="No space left"):
        (folder / "more").write_bytes(bytes(1 << 13))
    filler.unlink()
    (folder / "more").write_bytes(bytes(1 << 13))
    runtime.close()
    assert list(folder.iterdir()) == []
