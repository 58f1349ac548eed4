"""Secrecy: no failure reveals a secret in an error, repr, log line or warning, or on standard error."""

from __future__ import annotations

import base64
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, quote_plus

import pytest

from redelivery.base.secrets import holds_secret
from redelivery.contract.broker import Broker
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import NotApplicable, Subject

#: It contains characters that URLs, JSON and base64 encode differently. Nothing about it looks like a secret.
CANARY = "yellow bird/38+chirp~of=dawn"
#: A host that no resolver knows (RFC 2606).
UNKNOWN_HOST = "nowhere.invalid"
VARIABLE = "REDELIVERY_TEST_CANARY"
_HERE = re.compile(r"(?<=//)(?:localhost|127\.0\.0\.1)|(?<=://)\[::1\]|(?<=%3A//)127\.0\.0\.1")


def spellings() -> set[str]:
    """Return the canary's spellings: plain, URL-encoded, and base64 at each offset."""
    found = {CANARY, quote(CANARY), quote(CANARY, safe=""), quote_plus(CANARY)}
    for before in range(3):
        text = base64.b64encode(bytes(before) + CANARY.encode()).decode()
        found.add(text[4:-4])
    return found


class Told:
    """All texts that a user could have seen."""

    def __init__(self, *, frames: bool) -> None:
        self.texts: list[tuple[str, str]] = []
        self._frames = frames

    def add(self, what: str, *things: object) -> None:
        """Record the texts of these objects."""
        self.texts += [(what, each if isinstance(each, str) else f"{each!r}\n{each}") for each in things]

    def error(self, error: BaseException) -> None:
        """Record an error with its causes; for a configuration error also the variables of its frames."""
        self.add("an error", *traceback.format_exception(error), repr(error))
        if self._frames and isinstance(error, ConfigurationError):
            self.add("the frames of an error", *_held(error.__traceback__))

    def hides_it(self) -> None:
        """Assert that no text contains the canary."""
        for what, text in self.texts:
            for each in spellings():
                assert each not in text, f"{what} shows the secret: {_around(text, each)}"


def _held(trace: TracebackType | None) -> Iterator[str]:
    """Return the variables of the frames below the suite's own, as an error reporting tool writes them."""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).parent != Path(__file__).parent:
            yield repr(trace.tb_frame.f_locals)
        trace = trace.tb_next


def _around(text: str, part: str) -> str:
    at = text.index(part)
    return text[max(0, at - 300) : at] + "<HERE>" + text[at + len(part) : at + len(part) + 100]


def _use(subject: Subject, told: Told, connect: Callable[[], Broker], *, whole: bool = True) -> None:
    """Open a broker and really send; with `whole` also receive, plan and browse, which may be slow."""
    try:
        broker = connect()
    except RedeliveryError as error:
        told.error(error)
        return
    told.add("the broker", broker, broker.capabilities, broker.canonical_url or "", broker.hosts, broker.insecure)
    with broker:
        for use in (_send, _receive, _plan, _browse) if whole else (_send,):
            try:
                use(subject, told, broker)
            except RedeliveryError as error:
                told.error(error)


def _send(subject: Subject, told: Told, broker: Broker) -> None:
    deadline = subject.deadline(min(subject.place.patience, 2.0))
    with broker.sender() as sender:
        told.add("the sender", sender)
        batch = subject.batch([Message(value=b"a"), Message(value=b"b")])
        settled = subject.settle(sender, batch, deadline=deadline)[batch.number]
        told.add("how a batch was settled", settled)
        for each in (settled.error, *(failure.error for failure in settled.failures)):
            if each is not None:
                told.error(each)
        sender.check(deadline=deadline)


def _receive(subject: Subject, told: Told, broker: Broker) -> None:  # noqa: ARG001
    with broker.receiver() as receiver:
        told.add("the receiver", receiver)
        for received in receiver.receive(1, wait=0.2):
            told.add("a message", received)


def _plan(subject: Subject, told: Told, broker: Broker) -> None:
    with broker.admin() as admin:
        told.add("the admin", admin, admin.plan(DeliverySpec()))
        if subject.capabilities.depth:
            told.add("its depth", admin.depth())


def _browse(subject: Subject, told: Told, broker: Broker) -> None:  # noqa: ARG001
    with broker.dead_letters() as letters:
        told.add("the letters", letters, *letters.browse())


@contextmanager
def watched(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], *, frames: bool = False
) -> Iterator[Told]:
    """Record all logs (at DEBUG), warnings and output of the `with` block; then search them for the canary.

    With `frames` the variables in the frames of a configuration error are searched too. Leave it out if the caller's
    own frames contain the canary.
    """
    told = Told(frames=frames)
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield told
    told.add("a log line", *(f"{each.name}: {each.getMessage()}\n{each.exc_text or ''}" for each in caplog.records))
    told.add("a log line", caplog.text)
    told.add("a warning", *(str(each.message) for each in warned))
    told.add("what was written", *capfd.readouterr())
    told.hides_it()


def _refused(subject: Subject) -> str:
    return subject.place.unreachable()


def _unknown_host(subject: Subject) -> str:
    url = subject.place.unreachable()
    if not _HERE.search(url):
        raise NotApplicable("its URLs name no host")
    return _HERE.sub(UNKNOWN_HOST, url)


def _missing(subject: Subject) -> str:
    nowhere = subject.place.impossible_destination()
    if nowhere is None or not subject.capabilities.destinations:
        raise NotApplicable("any destination can be")
    try:
        return subject.broker.sibling(nowhere)
    except ConfigurationError:
        raise NotApplicable("a target that cannot be has no URL") from None


WAYS: Mapping[str, Callable[[Subject], str]] = {
    "wrong-credentials": lambda subject: subject.place.url,
    "refused-connection": _refused,
    "unknown-host": _unknown_host,
    "missing-target": _missing,
}


class Secrecy(Statements):
    """A secret in an option or in a URL, with each way of failing."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("given", ["reference", "literal"])
    def test_a_secret_option_shows_nowhere_when_all_fails(
        self,
        subject: Subject,
        given: str,
        way: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """This tests each secret option alone, and each login of the harness."""
        ways = _logins(subject)
        if not ways:
            raise NotApplicable("it has no secret option")
        url = WAYS[way](subject)
        with watched(caplog, capfd, frames=given == "reference") as told:
            for number, (options, names) in enumerate(ways):
                mine = dict(options)
                for name in names if given == "reference" else ():
                    monkeypatch.setenv(f"{VARIABLE}_{number}", mine[name])
                    mine[name] = f"env:{VARIABLE}_{number}"
                whole = (given, way, number) == ("reference", "wrong-credentials", 0)
                connect = partial(subject.harness.connect, url, mine)
                _use(subject, told, connect, whole=whole)

    @pytest.mark.parametrize("at", ["unreachable", "wrong-credentials"])
    def test_a_password_in_a_url_shows_nowhere_when_all_fails(
        self, subject: Subject, at: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """If the scheme accepts no password, its refusal must not show it either."""
        url = subject.place.secret_url(quote(CANARY, safe=""))
        if at == "wrong-credentials":
            login = f"://someone:{quote(CANARY, safe='')}@"
            url, changed = re.subn("://(?:[^/@]*@)?(?=[^/])", login, subject.place.url, count=1)
            if not changed:
                raise NotApplicable("its URLs name no host")
        with watched(caplog, capfd) as told:
            _use(subject, told, lambda: subject.harness.connect(url, subject.place.options))

    @pytest.mark.local
    def test_a_malformed_option_beside_a_secret_shows_neither(
        self,
        subject: Subject,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        plugin = subject.harness.plugin()
        ways = _logins(subject)
        if not ways:
            raise NotApplicable("it has no secret option")
        with watched(caplog, capfd, frames=True) as told:
            for options, names in ways:
                if any(each in options[name] for name in options.keys() - set(names) for each in spellings()):
                    continue  # the caller's own frames contain a literal password
                monkeypatch.setenv(VARIABLE, options[names[0]])
                for name in plugin.options:
                    full = f"{plugin.name}.{name}"
                    if full not in options:
                        both = {**options, **dict.fromkeys(names, f"env:{VARIABLE}"), full: "no such value"}
                        try:
                            subject.harness.connect(subject.place.url, both).close()
                        except RedeliveryError as error:
                            told.error(error)

    @pytest.mark.local
    def test_a_secret_that_cannot_be_read_is_told_without_any_of_it(
        self, subject: Subject, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """This tests a file without text, and a file in an option that is not a secret."""
        plugin = subject.harness.plugin()
        planted = tmp_path / "planted"
        planted.write_bytes(b"\xff" + CANARY.encode())
        with watched(caplog, capfd, frames=True) as told:
            for name in plugin.options:
                options = {**subject.place.options, f"{plugin.name}.{name}": f"file:{planted}"}
                with pytest.raises(ConfigurationError) as caught:
                    subject.harness.connect(subject.place.url, options)
                told.error(caught.value)


def _logins(subject: Subject) -> list[tuple[dict[str, str], list[str]]]:
    """Return options that contain the canary, with their names."""
    plugin, place = subject.harness.plugin(), subject.place
    secret = [f"{plugin.name}.{name}" for name in plugin.options if holds_secret(name)]
    ways: list[tuple[dict[str, str], list[str]]] = [({**place.options, name: CANARY}, [name]) for name in secret]
    logins = map(dict, place.logins(CANARY))
    return ways + [(login, [name for name in login if name in secret and CANARY in login[name]]) for login in logins]
