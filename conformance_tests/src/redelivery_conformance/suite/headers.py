"""Headers: names and bytes come back unchanged, or the row is refused. They are never rewritten."""

from __future__ import annotations

import pytest

from redelivery.contract.message import Headers as Pairs
from redelivery.contract.message import Message
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject

#: Headers that a broker may refuse, but must not change.
ODD_HEADERS: dict[str, Pairs] = {
    "repeated-name": (("n", b"1"), ("m", b"2"), ("n", b"3"), ("n", b"3")),
    "names-that-differ-in-case": (("Name", b"1"), ("name", b"2")),
    "empty-value": (("n", b""),),
    "no-value": (("n", None),),
    "empty-name": (("", b"v"),),
    "name-with-spaces": ((" a b ", b"v"),),
    "name-with-controls": (("a\r\nb\tc", b"v"),),
    "name-with-nul": (("a\0b", b"v"),),
    "name-beyond-ascii": (("größe-大きさ-📏", b"v"),),
    "long-name": (("n" * 300, b"v"),),
    "name-like-sql": (("n'); --", b"v"),),
}


class Headers(Statements):
    """Headers travel."""

    @broker_has("send", "headers")
    def test_headers_come_back_in_their_order(self, subject: Subject) -> None:
        message = Message(value=b"v", headers=(("zebra", b"1"), ("ant", b"2"), ("mouse", b"3")))
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "headers")
    def test_header_names_keep_their_case(self, subject: Subject) -> None:
        message = Message(value=b"v", headers=(("Content-Type", b"text/plain"), ("traceParent", b"00-1")))
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "headers")
    def test_header_values_keep_their_bytes(self, subject: Subject) -> None:
        values = (b"text", bytes(range(256)), b"\xff", b"42", b"true", " ä ".encode())
        message = Message(value=b"v", headers=tuple((f"h{at}", value) for at, value in enumerate(values)))
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "headers")
    def test_rows_keep_their_own_headers(self, subject: Subject) -> None:
        """A row without headers stays without, between rows with headers in one batch."""
        all_headers: list[Pairs] = [(("a", b"1"),), (), (("a", b"2"), ("b", b"3")), ()]
        messages = [Message(value=b"%d" % at, headers=headers) for at, headers in enumerate(all_headers)]
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send", "headers")
    def test_as_many_headers_as_the_limits_allow_come_back(self, subject: Subject) -> None:
        """That is a hundred, or fewer if the limits of the broker are lower."""
        count = min(100, subject.capabilities.limits.header_count or 100)
        message = Message(value=b"v", headers=tuple((f"header-{at}", b"%d" % at) for at in range(count)))
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "headers")
    def test_as_long_a_header_as_the_limits_allow_comes_back(self, subject: Subject) -> None:
        """That is 64 KiB, or less if the limits of the broker are lower."""
        limits = subject.capabilities.limits
        bounds = (64 << 10, limits.header_value_bytes, limits.headers_bytes and limits.headers_bytes - 1)
        message = Message(value=b"v", headers=(("h", b"x" * min(each for each in bounds if each)),))
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "headers")
    @pytest.mark.parametrize("headers", [pytest.param(pairs, id=name) for name, pairs in ODD_HEADERS.items()])
    def test_odd_headers_come_back_or_the_row_is_refused_alone(self, subject: Subject, headers: Pairs) -> None:
        subject.kept_or_refused(Message(value=b"v", headers=headers))

    @broker_has("send")
    @broker_lacks("headers")
    def test_without_headers_a_row_with_some_is_refused_alone(self, subject: Subject) -> None:
        subject.refuses_alone(Message(value=b"v", headers=(("n", b"v"),)))
