"""The recorded results: one JSON file per broker and version, without histories; the page is generated from them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from faults.running import Result

FOLDER: Final = Path(__file__).parent / "results"
_PRODUCTS: Final = {
    "kafka": "Kafka",
    "rabbitmq": "RabbitMQ",
    "sqs": "SQS (ElasticMQ)",
    "servicebus": "Service Bus (our stand-in)",
    "nats": "NATS",
    "sqlite": "SQLite",
    "http": "HTTP (a server of the process)",
    "file": "files",
}
_VERSION: Final = re.compile(r"\b\d+\.\d+(\.\d+)?\b")


def product(broker: str) -> str:
    """Return the product's name, for people."""
    return _PRODUCTS[broker]


def version_of(description: str) -> str:
    """Return the first version that a runtime's description names; empty: it names none."""
    found = _VERSION.search(description)
    return found[0] if found else ""


def as_record(result: Result) -> dict[str, Any]:
    """Return the record of a cell."""
    return {
        "fault": result.cell.fault,
        "workload": result.cell.workload,
        "seed": result.plan.seed,
        "rows": result.plan.rows,
        "poison": len(result.plan.poison),
        "ok": result.verdict.ok,
        "counts": {name: number for name, number in sorted(result.verdict.counts.items()) if number},
        "states": list(result.states),
        "violations": [str(each) for each in result.verdict.violations][:10],
        "proxy": result.proxy,
        "seconds": round(result.seconds, 1),
    }


def save(folder: Path, broker: str, version: str, results: Sequence[Result]) -> Path:
    """Write the results of a broker's version; cells that are already recorded and did not run again stay."""
    path = folder / f"{broker}{'-' if version else ''}{version}.json"
    cells = {_name(each): each for each in (load(path)["cells"] if path.exists() else [])}
    cells |= {_name(each): each for each in map(as_record, results)}
    record = {"broker": broker, "version": version, "cells": [cells[name] for name in sorted(cells)]}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a file of results."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def recorded(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return all recorded results, by broker and version."""
    return [load(path) for path in sorted(folder.glob("*.json"))]


def _name(record: dict[str, Any]) -> str:
    return f"{record['fault']}/{record['workload']}"
