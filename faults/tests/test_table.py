"""The table of cells, its records and its page agree."""

from __future__ import annotations

from collections import Counter

from faults.actions import faults_of
from faults.cells import CELLS, NETWORKED, QUEUES, SENT_TO
from faults.page import PAGE, as_markdown
from faults.proxy import NETWORK_FAULTS
from faults.results import recorded, version_of
from faults.states import STATES
from faults.workloads import WORKLOADS

RECORDS = recorded()


def test_the_table_is_as_large_as_promised() -> None:
    assert len(CELLS) >= 60
    assert {cell.broker for cell in CELLS} >= {*QUEUES, *SENT_TO}


def test_each_cell_is_there_once() -> None:
    assert [name for name, number in Counter(cell.name for cell in CELLS).items() if number > 1] == []


def test_each_broker_and_workload_of_a_cell_has_its_fault() -> None:
    """The table leaves out faults that a broker cannot have."""
    processes = {"killed", "worker-killed", "clock-back", "clock-forward"}
    for cell in CELLS:
        assert cell.workload in WORKLOADS
        if cell.fault in NETWORK_FAULTS:
            assert cell.broker in {*NETWORKED, *SENT_TO}
        else:
            assert cell.fault in {*processes, *faults_of(cell.broker)}, cell.name


def test_what_each_broker_can_suffer_is_in_the_table() -> None:
    for broker in QUEUES:
        there = {cell.fault for cell in CELLS if cell.broker == broker}
        assert set(faults_of(broker)) <= there


def test_the_short_table_meets_every_broker() -> None:
    assert {cell.broker for cell in CELLS if cell.short} >= {*QUEUES, *SENT_TO}


def test_the_page_is_made_from_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(RECORDS), "run: python -m faults.page"


def test_records_are_of_cells_of_the_table_with_enough_rows() -> None:
    known = {(cell.broker, cell.fault, cell.workload) for cell in CELLS}
    for record in RECORDS:
        for cell in record["cells"]:
            assert (record["broker"], cell["fault"], cell["workload"]) in known
            assert cell["rows"] >= 2_000
            assert cell["poison"] >= 1


def test_every_recorded_cell_holds() -> None:
    failing = [(record["broker"], cell) for record in RECORDS for cell in record["cells"] if not cell["ok"]]
    assert failing == []


def test_the_recorded_table_has_reached_every_rare_state() -> None:
    found = {state for record in RECORDS for cell in record["cells"] for state in cell["states"]}
    assert [state.name for state in STATES if state.name not in found] == []


def test_a_version_is_the_first_that_a_description_names() -> None:
    assert version_of("RabbitMQ 4.3.6, quorum queues, container of local/rabbitmq:4.3") == "4.3.6"
    assert version_of("Kafka in local/kafka:4.4.0, at 127.0.0.1:25090") == "4.4.0"
    assert version_of("a stand-in of ours on python-qpid-proton, not Azure") == ""
