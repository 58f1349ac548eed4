"""Hostile options, URLs and names: each gives one short line, in linear time, and reveals nothing of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from redelivery.base.secrets import holds_secret
from redelivery.contract.message import Message
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject

#: Values that an attacker may give any option.
HOSTILE = {
    "empty": "",
    "long": "x" * 100_000,
    "nul": "a\0b",
    "newline": "a\nb: c",
    "control": "\x1b[2J\x07\x9b",
    "surrogate": "\ud800",
    "zero": "0",
    "negative": "-1",
    "huge": "9" * 400,
    "infinite": "inf",
    "no-number": "nan",
    "json": '{"a": ["b"]}',
    "deep": "[" * 50_000,
    "digits": "\u0663",
}
#: The longest error text, in characters.
SHORT = 2000
#: Length of the first and of the last text of a series, in characters.
FIRST, LAST = 1 << 12, 1 << 17
#: Quadratic work on the second text takes seconds, so the test fails there and does not take minutes for the last.
SERIES = (FIRST, 1 << 14, LAST)
#: Processor seconds for a series. Linear work takes a hundredth; quadratic work on the last text takes minutes.
QUICK = 5.0
#: The parts of a series: delimiters of URLs, of pairs, of JSON and of escapes.
PIECES = ("a", "/", ":", "@", "a://b:", "%41", "%", "?a=", "&a=b", ",", ";a=b", "[", "{", ".", "\\", '"', " ", "-a")


@contextmanager
def quick(what: str) -> Iterator[None]:
    """Assert that the block takes little processor time."""
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < QUICK, f"{what} took {took:.1f} s: its time grows faster than the text"


def one_short_line(error: BaseException) -> None:
    """Assert that an error is readable and contains no control characters for terminals."""
    text = str(error)
    assert text.strip(), f"{type(error).__name__} says nothing"
    assert len(text) <= SHORT, f"an error of {len(text)} characters: {text[:200]}..."
    assert text.isprintable(), f"an error of several lines, or with control characters: {text[:400]!r}"


class Hostility(Statements):
    """Input from others: people who may set options, name a place or send a message."""

    @pytest.mark.local
    @pytest.mark.parametrize("value", HOSTILE)
    def test_a_hostile_option_is_taken_or_refused_in_one_short_line(self, subject: Subject, value: str) -> None:
        """Our own error refuses each option separately. No value makes anything slow."""
        plugin = subject.harness.plugin()
        for name in plugin.options:
            options = {**subject.place.options, f"{plugin.name}.{name}": HOSTILE[value]}
            with quick(f"{plugin.name}.{name}"):
                try:
                    subject.harness.connect(subject.place.url, options).close()
                except ConfigurationError as error:
                    one_short_line(error)

    @broker_has("send")
    @pytest.mark.parametrize("value", ["long", "nul", "newline", "control", "surrogate", "digits"])
    def test_a_hostile_option_that_is_taken_opens_or_fails_by_an_error_of_ours(
        self, subject: Subject, value: str
    ) -> None:
        plugin = subject.harness.plugin()
        for name in plugin.options:
            options = {**subject.place.options, f"{plugin.name}.{name}": HOSTILE[value]}
            with suppress(RedeliveryError), subject.harness.connect(subject.place.url, options) as broker:
                broker.sender().close()

    @pytest.mark.local
    def test_no_option_but_a_secret_reads_a_file_or_a_variable(
        self, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor does an error reveal any part of their content."""
        plugin = subject.harness.plugin()
        planted = tmp_path / "planted"
        planted.write_text("7171717171")
        monkeypatch.setenv("REDELIVERY_TEST_PLANTED", "7171717171")
        for name in (each for each in plugin.options if not holds_secret(each)):
            for reference in (f"file:{planted}", "env:REDELIVERY_TEST_PLANTED"):
                options = {**subject.place.options, f"{plugin.name}.{name}": reference}
                with pytest.raises(ConfigurationError) as caught:
                    subject.harness.connect(subject.place.url, options)
                assert "7171717171" not in str(caught.value)
                one_short_line(caught.value)

    @pytest.mark.local
    @pytest.mark.parametrize(
        "rest", ["\0", "\n", "//h\nb/q", "//\x1b[2J", "//h/\ud800", "//h/" + "x" * 100_000, "//h?" + "a=b&" * 9]
    )
    def test_a_hostile_url_is_opened_or_refused_in_one_short_line(self, subject: Subject, rest: str) -> None:
        scheme = subject.place.url.partition(":")[0]
        try:
            subject.connect(f"{scheme}:{rest}")
        except ConfigurationError as error:
            one_short_line(error)

    @pytest.mark.local
    @pytest.mark.parametrize("piece", PIECES)
    def test_what_others_name_is_read_in_time_linear_in_it(self, subject: Subject, piece: str) -> None:
        """These are URLs, names of places and of subscriptions, and options."""
        plugin, place, broker = subject.harness.plugin(), subject.place, subject.broker
        scheme = place.url.partition(":")[0]
        asked: dict[str, Callable[[str], object]] = {
            "a URL": lambda text: subject.harness.connect(f"{scheme}:{text}", place.options).close(),
            "a URL's host": lambda text: subject.harness.connect(f"{scheme}://{text}", place.options).close(),
            "a URL's end": lambda text: subject.harness.connect(f"{place.url}{text}", place.options).close(),
            "a name": broker.sibling,
            "a subscription": broker.subscription,
        }
        for name in plugin.options:
            asked[f"{plugin.name}.{name}"] = lambda text, name=name: subject.harness.connect(  # type: ignore[misc]
                place.url, {**place.options, f"{plugin.name}.{name}": text}
            ).close()
        for what, ask in asked.items():
            for size in SERIES:
                with quick(f"{what} of {size:,} characters {piece!r}"), suppress(RedeliveryError):
                    ask(piece * (size // len(piece)))

    @broker_has("send")
    @pytest.mark.parametrize("piece", PIECES)
    def test_hostile_rows_are_stored_or_refused_in_time_linear_in_them(self, subject: Subject, piece: str) -> None:
        """These are headers, ids, keys and destinations. A refusal that quotes them is checked too."""
        has, sender = subject.capabilities, subject.sender()
        for size in (FIRST, LAST):
            text = piece * (size // len(piece))
            rows = [Message(value=text.encode())]
            rows += [Message(value=b"v", headers=((text, b"v"), ("n", text.encode())))] if has.headers else []
            rows += [Message(value=b"v", id=text)] if has.ids else []
            rows += [Message(value=b"v", key=text.encode())] if has.keys else []
            rows += [Message(value=b"v", destination=text)] if has.destinations else []
            with quick(f"rows of {size:,} characters {piece!r}"):
                settled = subject.send(*rows, sender=sender, isolate=True)
            for each in settled.failures:
                assert len(str(each.error)) <= SHORT, f"an error of {len(str(each.error))} characters"
