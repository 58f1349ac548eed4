"""Connections outlive a task that went well, and no other."""

import pytest

from redelivery.contract.broker import Broker, Capabilities
from redelivery.spark import connections


class Line(Broker):
    name = "line"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(connections, "_idle", {})
    return []


def connect_into(made):
    def connect(url, options):
        made.append(Line())
        return made[-1]

    return connect


def use(made, *urls, options=None, fail=False):
    with connections.task_connections(connect_into(made)) as connection_factory:
        for url in urls:
            with connection_factory(url, options or {}):
                pass
        if fail:
            raise ZeroDivisionError


def test_the_next_task_gets_the_same_connection(made):
    use(made, "a:1")
    use(made, "a:1")
    assert len(made) == 1
    assert not made[0].closed


def test_another_url_or_other_options_get_another_connection(made):
    use(made, "a:1")
    use(made, "a:2")
    use(made, "a:1", options={"a.x": "1"})
    assert len(made) == 3


def test_two_connections_at_once_are_two(made):
    with (
        connections.task_connections(connect_into(made)) as connection_factory,
        connection_factory("a:1", {}) as one,
        connection_factory("a:1", {}) as other,
    ):
        assert one is not other
    use(made, "a:1", "a:1")
    assert len(made) == 2


def test_a_failed_task_leaves_no_connection_behind(made):
    with pytest.raises(ZeroDivisionError):
        use(made, "a:1", "a:2", fail=True)
    assert all(each.closed for each in made)
    use(made, "a:1")
    assert len(made) == 3


def test_an_error_while_borrowed_closes_it(made):
    def failing():
        with connections.task_connections(connect_into(made)) as connection_factory, connection_factory("a:1", {}):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert made[0].closed


def test_a_connection_that_lay_idle_too_long_is_closed_not_used(made, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    use(made, "a:1")
    now[0] += connections.IDLE_MAX + 1
    use(made, "b:1")
    assert made[0].closed
    use(made, "a:1")
    assert len(made) == 3


def test_a_forked_child_does_not_use_its_parents_connection(made, monkeypatch):
    use(made, "a:1")
    monkeypatch.setattr(connections.os, "getpid", lambda: -1)
    use(made, "a:1")
    assert len(made) == 2
    connections.close_idle()
    assert [each.closed for each in made] == [False, True]
