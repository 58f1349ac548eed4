"""Installs a plugin's file for one run: for this process and for Spark's workers."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def install(name: str, file: Path, folder: Path) -> None:
    """Turn a file into a distribution in a folder on the path of this process and of Spark's workers."""
    shutil.copy(file, folder / f"redelivery_{name}.py")
    shutil.copy(__file__, folder / "one_run.py")
    info = folder / f"redelivery_{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: redelivery-{name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[redelivery]\n{name} = redelivery_{name}\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, str(folder))
