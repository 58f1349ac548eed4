"""Preflight: what can never work is said before a job begins; what is only in doubt is left to the tasks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from importlib import import_module

import pytest
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.contract.broker import Broker, Sender
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    ConfigurationError,
    ContractViolation,
    Fatal,
    MissingSecret,
    Permanent,
    Retriable,
)
from redelivery.sending import preflight


class Asked(ScriptedBroker):
    """A broker whose sender, when it is checked, does as told."""

    check: Callable[[float], None] | None = None

    def sender(self) -> Sender:
        made = super().sender()
        outer = self

        class Checked(ScriptedSender):
            def check(self, *, deadline: float) -> None:
                if outer.check is not None:
                    outer.check(deadline)

        made.close()
        return Checked(self)


def asked(error: BaseException | None = None, *, on_open: BrokerError | None = None) -> Asked:
    broker = Asked(FakeClock(), on_open=on_open)

    def check(_deadline: float) -> None:
        if error is not None:
            raise error

    broker.check = check
    return broker


class Lent:
    """Lends brokers by URL, and counts those that are out."""

    def __init__(self, **brokers: Broker | Exception) -> None:
        self.brokers = brokers
        self.out = 0

    @contextlib.contextmanager
    def __call__(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        broker = self.brokers[url.removeprefix("scripted:")]
        if isinstance(broker, Exception):
            raise broker
        self.out += 1
        try:
            yield broker
        finally:
            self.out -= 1


def look(lent: Lent, *, timeout: timedelta | None = None, shared_mount: bool = False) -> list[str]:
    sinks = tuple(Sink(uri=f"scripted:{name}") for name in lent.brokers if name != "work")
    spec = DeliverySpec(dead_letter_sink=sinks, timeout=timeout)
    doubts = preflight("scripted:work", spec, options={}, shared_mount=shared_mount, connection_factory=lent)
    return [str(doubt) for doubt in doubts]


def test_where_all_is_well_nothing_is_said_nothing_sent_and_nothing_kept() -> None:
    brokers = {"work": asked(), "sink": asked()}
    lent = Lent(**brokers)
    assert look(lent) == []
    assert lent.out == 0
    assert not any(broker.sends for broker in brokers.values())


@pytest.mark.parametrize("place", ["work", "sink"])
@pytest.mark.parametrize("error", [Fatal("no such queue"), Permanent("no such name"), ConfigurationError("no path")])
def test_what_can_never_work_is_raised(place: str, error: Exception) -> None:
    lent = Lent(**{"work": asked(), "sink": asked(), place: asked(error)})
    with pytest.raises(type(error), match="no "):
        look(lent)
    assert lent.out == 0


def test_what_opening_says_counts_too() -> None:
    with pytest.raises(Fatal, match="wrong password"):
        look(Lent(work=asked(on_open=Fatal("wrong password"))))


@pytest.mark.parametrize("error", [Retriable("it is down"), Ambiguous("no answer")])
def test_a_place_that_is_only_down_now_is_a_doubt(error: Exception) -> None:
    (doubt,) = look(Lent(work=asked(), sink=asked(error)))
    assert "scripted:sink" in doubt
    assert str(error) in doubt


def lookups(monkeypatch: pytest.MonkeyPatch, answer: OSError | None) -> None:
    def look_up(_host: str, _port: None) -> list[object]:
        if answer is not None:
            raise answer
        return []

    monkeypatch.setattr("redelivery.sending.connector.socket.getaddrinfo", look_up)


@pytest.mark.parametrize("place", ["work", "sink"])
def test_a_host_of_no_such_name_can_never_work(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups(monkeypatch, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    broker = asked(Retriable("it is down"))
    broker.hosts = ("mistyped.example",)
    with pytest.raises(Fatal, match=r"it is down; this machine knows no host 'mistyped.example'"):
        look(Lent(**{"work": asked(), "sink": asked(), place: broker}))


@pytest.mark.parametrize("answer", [None, socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("no network")])
def test_a_host_that_may_have_this_name_is_only_down(answer: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups(monkeypatch, answer)
    broker = asked(Retriable("it is down"))
    broker.hosts = ("broker.example",)
    assert len(look(Lent(work=broker))) == 1


def test_a_host_is_still_looked_up_where_the_broker_was_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(_host: str, _port: None) -> None:
        time.sleep(0.1)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def check(deadline: float) -> None:
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise Retriable("no answer")

    monkeypatch.setattr("redelivery.sending.connector.socket.getaddrinfo", look_up)
    monkeypatch.setattr(import_module("redelivery.sending.preflight"), "_MORE", 30.0)  # the machine may be busy
    broker = asked()
    broker.check, broker.hosts = check, ("mistyped.example",)
    with pytest.raises(Fatal, match="knows no host"):
        look(Lent(work=broker), timeout=timedelta(seconds=0.2))


def test_where_no_name_exists_but_all_is_well_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy only the proxy may know the names."""
    lookups(monkeypatch, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    broker = asked()
    broker.hosts = ("inside.example",)
    assert look(Lent(work=broker)) == []


def test_a_doubt_about_one_place_does_not_hide_that_another_can_never_work() -> None:
    with pytest.raises(Fatal, match="no such queue"):
        look(Lent(work=asked(Retriable("it is down")), sink=asked(Fatal("no such queue"))))


def test_a_secret_that_this_machine_lacks_is_a_doubt() -> None:
    (doubt,) = look(Lent(work=asked(), sink=MissingSecret("'env:NAME' is not set on this machine")))
    assert "env:NAME" in doubt


def test_a_mount_of_the_workers_is_not_looked_for_here() -> None:
    broker = asked(Fatal("the folder is missing"))
    broker.capabilities = replace(broker.capabilities, networked=False)
    assert "sharedMount" in look(Lent(work=asked(), sink=broker), shared_mount=True)[0]
    with pytest.raises(Fatal, match="folder is missing"):
        look(Lent(work=asked(), sink=broker))


def test_a_place_that_does_not_answer_holds_up_nothing_past_the_attempts_timeout() -> None:
    broker, release = asked(), threading.Event()
    broker.check = lambda _deadline: bool(release.wait(30)) and None
    began = time.monotonic()
    (doubt,) = look(Lent(work=asked(), sink=broker), timeout=timedelta(seconds=0.2))
    release.set()
    assert "no answer in time" in doubt
    assert time.monotonic() - began < 5


def test_the_deadline_is_the_attempts_timeout() -> None:
    broker, told = asked(), []
    broker.check = told.append
    began = time.monotonic()
    look(Lent(work=broker), timeout=timedelta(seconds=3))
    assert began <= told[0] <= time.monotonic() + 3
    broker.check = told.append
    look(Lent(work=broker), timeout=timedelta(hours=1))
    assert told[1] <= time.monotonic() + 10


def test_a_plugin_that_raises_its_clients_error_broke_the_contract() -> None:
    with pytest.raises(ContractViolation, match=r"check\(\) raised OSError"):
        look(Lent(work=asked(OSError("raw"))))
