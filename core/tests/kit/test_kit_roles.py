"""The base of roles: closed once, by the process that opened it, and of no use afterwards or in a fork."""

import multiprocessing
import threading
from collections.abc import Callable, Sequence

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Fatal
from redelivery.kit.roles import Resource


class Connection(Resource):
    def __init__(self) -> None:
        super().__init__("carrier", "queue 'orders'")
        self.released = 0

    def _release(self) -> None:
        self.released += 1


class CarrierSender(Connection, Sender):
    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")

    def collect(self, wait: float) -> Sequence[Settled]:
        return []


def in_a_fork(what: Callable[[], object]) -> object:
    """What a child of a fork of this process returns."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(what()))
    child.start()
    assert ours.poll(30)
    found = ours.recv()
    child.join(30)
    return found


def test_closing_twice_releases_once() -> None:
    role = Connection()
    assert not role.is_closed
    role.close()
    role.close()
    assert (role.is_closed, role.released) == (True, 1)


@pytest.mark.parametrize(("kind", "noun"), [(CarrierSender, "sender"), (Connection, "connection")])
def test_a_closed_role_refuses_and_says_what_it_was_asked_for(kind: type[Connection], noun: str) -> None:
    role = kind()
    role.check_open("sending to")
    role.close()
    with pytest.raises(Fatal) as raised:
        role.check_open("sending to")
    assert str(raised.value) == f"carrier: sending to queue 'orders': this {noun} is closed; open another"
    assert raised.value.code is Code.CLOSED


def test_an_inherited_role_refuses_in_a_fork() -> None:
    role = CarrierSender()

    def use() -> str:
        try:
            role.check_open("sending to")
        except Fatal as error:
            return str(error)
        return "used"

    expected = "carrier: sending to queue 'orders': this sender was opened by the parent of this process; open one here"
    assert in_a_fork(use) == expected
    role.check_open("sending to")


def test_an_inherited_role_closed_in_a_fork_releases_nothing() -> None:
    role = Connection()

    def close() -> tuple[bool, int]:
        role.close()
        return role.is_closed, role.released

    with role._closed._cond:  # as another thread of the parent may hold it
        assert in_a_fork(close) == (True, 0)
    assert not role.is_closed


def test_closing_ends_a_wait() -> None:
    role = Connection()
    threading.Timer(0.05, role.close).start()
    assert role.sleep_unless_closed(30)
    assert not Connection().sleep_unless_closed(0)
