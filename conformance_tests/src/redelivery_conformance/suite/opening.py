"""Opening: a plugin's description, URLs, options and secrets, and no I/O before a role is opened."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from redelivery.contract.broker import CONTRACT_VERSION, Support
from redelivery.contract.message import Message
from redelivery.contract.spec import Ref
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    ConfigurationError,
    InvalidURL,
    Permanent,
    RedeliveryError,
    Retriable,
    Unattributed,
    UnknownOption,
)
from redelivery.formats import dialects
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import GRACE, NotApplicable, Subject

#: Audit events for I/O outside of this process and for changes to the file system.
IO = {"socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.mkdir", "os.rename", "os.link"}

_watched: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watched is not None and (event in IO or (event == "open" and "w" in str(arguments[1]))):
        _watched.append(event)


@contextmanager
def io_watched() -> Iterator[list[str]]:
    """Record the I/O within the `with` block, as far as Python sees it."""
    global _watched  # noqa: PLW0603 - audit hooks belong to the process and cannot be removed
    if not getattr(io_watched, "hooked", False):
        sys.addaudithook(_audit)
        io_watched.hooked = True  # type: ignore[attr-defined]
    seen: list[str] = []
    _watched = seen
    try:
        yield seen
    finally:
        _watched = None


def _refs(kind: str, name: str) -> Iterator[Ref]:
    """Return references of a kind as capabilities name it, in several versions if it has versions."""
    kind, _, group = kind.partition(".")
    for version in ("v1", "v1beta2") if group else ():
        yield Ref(api_version=f"{group}/{version}", kind=kind, name=name)
    if not group:
        yield Ref(kind=kind, name=name)


class Opening(Statements):
    """A plugin and its `connect`."""

    def test_the_plugin_says_what_it_is(self, subject: Subject) -> None:
        plugin = subject.harness.plugin()
        assert plugin.contract == CONTRACT_VERSION
        assert re.fullmatch(r"[a-z][a-z0-9_]*", plugin.name)
        assert plugin.version
        assert plugin.schemes
        assert subject.place.url.partition(":")[0] in plugin.schemes
        assert subject.broker.name == plugin.name

    def test_capabilities_hold_together(self, subject: Subject) -> None:
        has = subject.broker.capabilities
        assert has.context_dialect in dialects.NAMES
        assert has.send or not any((has.keys, has.headers, has.ids, has.timestamps, has.destinations, has.deduplicate))
        assert has.browse or not any((has.remove, has.purge)), "removing and purging are parts of browsing"
        assert has.deduplicate or has.deduplication_window is None
        assert has.ids or not has.deduplicate, "de-duplication goes by ids"
        receiving = (
            has.competing_consumers,
            has.subscriptions,
            has.settle_any_order,
            has.attempts,
            has.first_delivery,
            has.delay,
            has.terminate,
            has.extend,
        )
        assert has.receive or not any(receiving), "these are parts of receiving"
        assert has.dead_letter or not has.terminate, "terminating moves a message to the native place"

    def test_a_broker_claims_no_more_than_its_plugin(self, subject: Subject) -> None:
        """Options and plans are checked against the plugin's static capabilities; its modes may have others."""
        plugin = subject.harness.plugin()
        static = [plugin.capabilities, *plugin.modes.values()]
        for name in plugin.capabilities.__dataclass_fields__:
            if all(getattr(each, name) is Support.NONE for each in static):
                assert not getattr(subject.capabilities, name), f"{name}: the plugin says none, the broker has it"

    def test_nothing_is_touched_before_a_role_is_asked_for(self, subject: Subject) -> None:
        with subject.runtime.place() as fresh:
            before = fresh.snapshot()
            with io_watched() as seen:
                subject.harness.connect(fresh.url, fresh.options).close()
                subject.harness.connect(fresh.unreachable(), fresh.options).close()
            assert not seen, f"connecting did I/O: {seen}"
            assert fresh.snapshot() == before

    def test_an_unknown_option_is_refused_and_the_nearest_named(self, subject: Subject) -> None:
        plugin = subject.harness.plugin()
        known = next(iter(plugin.options), None)
        name = f"{plugin.name}.{known}x" if known else f"{plugin.name}.nonsense"
        options = {**subject.place.options, name: "1"}
        with pytest.raises(UnknownOption if not plugin.open_options else ConfigurationError) as caught:
            # A client that checks its own settings does so in its constructor.
            subject.keep(subject.keep(subject.harness.connect(subject.place.url, options)).sender())
        assert name in str(caught.value)
        if known:
            assert f"{plugin.name}.{known}" in str(caught.value), "the nearest known option is not named"

    def test_each_option_has_a_line_of_help(self, subject: Subject) -> None:
        for name, text in subject.harness.plugin().options.items():
            assert text.strip(), f"{name} has no help"
            assert "\n" not in text

    def test_a_malformed_url_is_refused(self, subject: Subject) -> None:
        scheme = subject.place.url.partition(":")[0]
        with pytest.raises(InvalidURL, match=r"\w"):
            subject.connect(f"{scheme}://[not-an-address/orders")

    @pytest.mark.parametrize("rest", ["", "//", "///", "//host:port/q", "//h/q#fragment", "q?unheard-of=1", "//h/%00"])
    def test_an_odd_url_is_opened_or_refused_by_an_error_of_ours(self, subject: Subject, rest: str) -> None:
        scheme = subject.place.url.partition(":")[0]
        with suppress(ConfigurationError):
            subject.connect(f"{scheme}:{rest}")

    @broker_has("send")
    def test_a_check_passes_where_rows_can_be_sent_and_sends_nothing(self, subject: Subject) -> None:
        before = subject.place.snapshot()
        sender = subject.sender()
        sender.check(deadline=subject.deadline())
        assert subject.place.snapshot() == before, "a check left something behind"
        subject.send(Message(value=b"after"), sender=sender)
        assert subject.values() == Counter([b"after"])

    @broker_has("send")
    def test_opening_and_checking_tell_of_a_broker_that_is_not_reached(self, subject: Subject) -> None:
        """They report it before any row, by the deadline, and as retriable: a broker that is down may come back."""
        began = time.monotonic()
        with pytest.raises(BrokerError) as caught, subject.connect(subject.place.unreachable()).sender() as sender:
            sender.check(deadline=subject.deadline())
        assert not isinstance(caught.value, Permanent | Unattributed), "it is no row's fault"
        assert time.monotonic() - began < 2 * subject.place.patience + GRACE

    @broker_has("send", "destinations")
    def test_opening_and_checking_tell_of_a_target_that_is_not_there(self, subject: Subject) -> None:
        """They report it before any row: a job that cannot work does not start."""
        nowhere = subject.place.impossible_destination()
        if nowhere is None:
            raise NotApplicable("any destination can be")
        with (
            pytest.raises(RedeliveryError) as caught,
            subject.connect(subject.broker.sibling(nowhere)).sender() as sender,
        ):
            sender.check(deadline=subject.deadline())
        assert not isinstance(caught.value, Retriable | Ambiguous), "another try mends nothing"

    def test_another_place_by_its_native_name_is_another_place_or_unsupported(self, subject: Subject) -> None:
        try:
            url = subject.broker.sibling("elsewhere")
        except RedeliveryError:
            subject.is_unsupported(lambda: subject.broker.sibling("elsewhere"))
            return
        assert url != subject.place.url
        subject.connect(url)

    @broker_has("ref_kinds")
    def test_a_reference_of_a_known_kind_names_another_place(self, subject: Subject) -> None:
        """A kind is written `Kind` if it needs no apiVersion, else `Kind.group`. The version does not matter."""
        for each in subject.capabilities.ref_kinds:
            found = {subject.broker.resolve(ref) for ref in _refs(each, "elsewhere")}
            assert len(found) == 1, f"{each}: another version is another place"
            assert subject.place.url not in found
            subject.connect(found.pop())

    @broker_has("ref_kinds")
    @pytest.mark.parametrize("at_fault", ["kind", "group", "namespace"])
    def test_a_reference_to_what_is_not_known_is_refused(self, subject: Subject, at_fault: str) -> None:
        """Another product's service must not become a queue of that name."""
        for each in subject.capabilities.ref_kinds:
            ref = next(_refs(each, "elsewhere"))
            other = {
                "kind": replace(ref, kind="Service"),
                "group": replace(ref, api_version="serving.knative.dev/v1"),
                "namespace": replace(ref, namespace="somewhere"),
            }[at_fault]
            with pytest.raises(ConfigurationError, match=other.namespace or re.escape(other.group_kind)):
                subject.broker.resolve(other)

    @broker_lacks("ref_kinds")
    def test_without_kinds_every_reference_is_refused(self, subject: Subject) -> None:
        with pytest.raises(ConfigurationError, match=r"Queue"):
            subject.broker.resolve(Ref(kind="Queue", name="elsewhere"))

    def test_a_closed_broker_can_be_opened_again(self, subject: Subject) -> None:
        subject.connect().close()
        again = subject.connect()
        assert again.capabilities == subject.broker.capabilities
        if again.capabilities.send:
            with suppress(BrokerError):
                again.sender().close()

    @broker_lacks("receive")
    def test_without_a_receiver_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.receiver)
