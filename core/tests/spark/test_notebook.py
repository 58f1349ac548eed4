"""The notebook runs, cell by cell, and its plots show the dead letters that it makes.

REDELIVERY_PICTURES=docs/images pytest core/tests/spark/test_notebook.py    # renews the picture in the documents
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import matplotlib as mpl
import pytest

pytest.importorskip("redelivery_sqlite")

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs/notebooks/dead_letters.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def heights(figure) -> list[float]:
    return [bar.get_height() for bar in figure.axes[0].patches]


def test_the_notebook_runs_and_plots_its_letters(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after its backend is chosen

    space = {}
    try:
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), space)  # noqa: S102 - our own document
        reasons, hours = map(plt.figure, plt.get_fignums())
        dead = space["report"].dead_lettered
        assert sum(bar.get_width() for bar in reasons.axes[0].patches) == dead > 0
        assert sum(heights(hours)) == dead
        assert len(heights(hours)) == 2 * 24, "two reasons, by the hour"
        if folder := os.environ.get("REDELIVERY_PICTURES"):
            hours.savefig(Path(folder, "letters_by_hour.png"), dpi=100, metadata={"Software": None})
    finally:
        plt.close("all")
    assert "0 dead letters left" in capsys.readouterr().out


def test_the_notebook_is_committed_without_outputs():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert code
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
