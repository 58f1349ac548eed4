"""Generates `docs/faults.md` from the recorded results: `python -m faults.page`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from faults.cells import CELLS
from faults.proxy import NETWORK_FAULTS
from faults.results import FOLDER, product, recorded
from faults.states import STATES

PAGE: Final = Path(__file__).parents[1] / "docs" / "faults.md"
_HEAD: Final = """\
# Faults on real brokers

Made by `python -m faults.page` from the records of runs in [faults/results](../faults/results); a test compares it with
them. `nox -s faults -- --all` runs the whole table, and `nox -s faults` a short one.

In each cell a process works with a broker while something breaks; some of its rows are poison, which the broker always
refuses. Then an independent client, which uses no code of ours, reads everything at the broker. A checker in the style
of Jepsen's queue checker classifies each row, and holds the report, the letters and the invariants against what was
found. **Holds** means: no violation. [faults/README.md](../faults/README.md) explains how it works, and
`nox -s faults -- --broker BROKER --fault FAULT --workload WORKLOAD --seed SEED --rows ROWS` runs a cell again.

Columns: *ok* rows were confirmed and found once; *dead* are letters, each with its reason; *twice* were found more than
once, under one id and no more often than there were ambiguous attempts; *recovered* were reported as failed or
unknown, and are there; *other*: see below the tables.
"""
_FOOT: Final = """\
Other classes: `failed` rows of a job that failed were neither promised nor found. `handled` messages were accepted by
their subscriber, `waiting` ones are still at their source. `destroyed` rows were stored before the fault deleted their
queue. `skipped` rows were given up without a sink, as allowed, and counted.
"""
#: What every cell checks of the README's guarantees, by number, and faults that aim at it.
_GUARANTEES: Final[tuple[tuple[int, str, frozenset[str]], ...]] = (
    (1, "what a broker confirmed is read, with its value, key and headers", frozenset()),
    (2, "each row has one end, the report counts them all, each letter has a reason", frozenset()),
    (
        3,
        "copies of a row: at most 1 + ambiguous attempts + restarts, under one id",
        frozenset({"answers-cut", "black-hole", "black-hole-answers", "half-open", "reset", "killed", "worker-killed"}),
    ),
    (4, "letters hold the bytes of their row, and no more attempts than were made", frozenset()),
    (
        5,
        "a row counts as dead-lettered only if its letter is read",
        frozenset({"dead-letters-deleted", "dead-letters-full"}),
    ),
    (7, "processes end within the cell's limit", frozenset({"black-hole", "freeze", "half-open", "memory-alarm"})),
    (8, "no good row is refused for good because of poison beside it", frozenset()),
)
_PROXIES: Final = {"own": "our own proxy"}
_SHOWN: Final = {"ok": "ok", "dead-lettered": "dead", "duplicated": "twice", "recovered": "recovered"}


def as_markdown(records: list[dict[str, Any]]) -> str:
    """Return the page."""
    return "\n".join(_lines(records)).rstrip() + "\n"


def _lines(records: list[dict[str, Any]]) -> Iterator[str]:
    yield _HEAD
    yield from _summary(records)
    yield from _guarantees(records)
    yield from _states(records)
    for record in records:
        yield f"\n## {_title(record)}\n"
        yield f"| fault | workload | seed | rows | {' | '.join(_SHOWN.values())} | other | |"
        yield "|---|---|---|---" + "|---" * (len(_SHOWN) + 2) + "|"
        for cell in record["cells"]:
            yield _row(cell)
    yield f"\n{_FOOT}"


def _title(record: Mapping[str, Any]) -> str:
    return f"{product(record['broker'])} {record['version']}".strip()


def _summary(records: list[dict[str, Any]]) -> Iterator[str]:
    cells = [cell for record in records for cell in record["cells"]]
    holds = sum(cell["ok"] for cell in cells)
    rows = sum(cell["rows"] for cell in cells)
    total: Counter[str] = Counter()
    for cell in cells:
        total.update(cell["counts"])
    yield f"{len(cells)} cells were run, with {rows:,} rows: {holds} hold, {len(cells) - holds} do not."
    yield f"Of all rows {total['lost']} were lost, and {total['unexpected']} messages were found that nobody sent."
    network = [cell for cell in cells if cell["fault"] in NETWORK_FAULTS]
    made = Counter(cell["proxy"] for cell in network)
    by = " and ".join(f"{_PROXIES.get(name, name)} ({made[name]} cells)" for name in sorted(made, reverse=True))
    yield f"Faults of the network were made by {by}.\n"
    yield "| broker | cells | hold |\n|---|---|---|"
    for record in records:
        yield f"| {_title(record)} | {len(record['cells'])} | {sum(cell['ok'] for cell in record['cells'])} |"
    known = {(record["broker"], cell["fault"], cell["workload"]) for record in records for cell in record["cells"]}
    missing = [cell.name for cell in CELLS if (cell.broker, cell.fault, cell.workload) not in known]
    if missing:
        yield f"\nNot run: {', '.join(missing)}."


def _guarantees(records: list[dict[str, Any]]) -> Iterator[str]:
    faults = Counter(cell["fault"] for record in records for cell in record["cells"])
    yield "\n## Guarantees\n"
    yield "By their numbers in the [README](../README.md#guarantees). Every cell checks all of these. Others need"
    yield "no fault of a broker: 6 (secrets), 9 (context) and 10 (retries) have tests of their own.\n"
    yield "| | what is held against the independent client | cells whose fault aims at it |\n|---|---|---|"
    for number, means, aims in _GUARANTEES:
        aimed = sum(faults[fault] for fault in aims) if aims else sum(faults.values())
        named = ", ".join(sorted(aims)) or "all"
        yield f"| {number} | {means} | {aimed} ({named}) |"


def _states(records: list[dict[str, Any]]) -> Iterator[str]:
    found = Counter(state for record in records for cell in record["cells"] for state in cell["states"])
    yield "\n## Rare states\n"
    yield "A fault that meets no rare state proves little: a state that no cell reaches is a failure of the table.\n"
    yield "| state | cells that reached it |\n|---|---|"
    for state in STATES:
        yield f"| {state.means} | {found[state.name]} |"


def _row(cell: Mapping[str, Any]) -> str:
    counts = dict(cell["counts"])
    shown = [str(counts.pop(name, 0)) for name in _SHOWN]
    other = ", ".join(f"{number} {name}" for name, number in counts.items())
    word = "holds" if cell["ok"] else "**fails**: " + "; ".join(cell["violations"])
    parts = [cell["fault"], cell["workload"], str(cell["seed"]), str(cell["rows"]), *shown, other, word]
    return f"| {' | '.join(parts)} |"


if __name__ == "__main__":
    PAGE.write_text(as_markdown(recorded(FOLDER)), encoding="utf-8")
