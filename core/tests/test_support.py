"""No field of a delivery spec is ignored without a word: each changes what happens, or is refused, or is told of."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted import FakeClock, ScriptedBroker, ScriptedSender
from test_delivery import Lent, scripted
from test_engine import EngineSetup
from test_subscription import SubscriptionSetup, message

from redelivery import cli, provisioning
from redelivery.cli.provision import as_dict
from redelivery.contract.broker import Retry, Support
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import ConfigurationError, RedeliveryError, Throttled
from redelivery.receiving.subscription import Subscription
from redelivery.sending import Delivery, Engine, Origin, support
from redelivery.spark.options import read_write_options

ROOT = Path(__file__).parents[2]
NAMES = [each.name for each in fields(DeliverySpec)]
SECOND, MS = timedelta(seconds=1), timedelta(milliseconds=1)
GROWING: dict[str, Any] = {"retry": 3, "backoff_delay": SECOND}
EVENT: dict[str, Any] = {
    "headers": (("ce-specversion", b"1.0"), ("ce-id", b"a"), ("ce-type", b"t"), ("ce-source", b"/s")),
}


@dataclass(frozen=True)
class Probe:
    """A situation in which a field must change what is seen.

    Attributes:
        base: the spec without it.
        value: of the field.
        fate: how each attempt of the row fails.
        rows: how many.
        told: what is seen must hold this; empty: it need only differ.
    """

    value: Any
    base: dict[str, Any]
    fate: str = "retriable"
    rows: int = 1
    told: str = ""


SKIPPING = {"tolerance": "all", "allow_skip": True}
#: What is another situation for a subscription, whose clock is real.
QUICK: dict[str, Any] = {"retry": 3, "backoff_delay": MS}
SUBSCRIPTION = {
    "retry": Probe(2, {"backoff_delay": MS}),
    "backoff_policy": Probe("linear", QUICK),
    "backoff_delay": Probe(MS, {"retry": 1}),
    "backoff_max": Probe(MS, QUICK),
    "backoff_profile": Probe("knative-code", QUICK),
    "timeout": Probe(20 * MS, {}, fate="slow"),
    "retry_after_max": Probe(MS, {"retry": 1, "backoff_delay": MS}, fate="throttled"),
    "retry_timeout": Probe(timedelta(microseconds=1), {"retry": 5, "backoff_delay": MS}),
    "retry_delay_max": Probe(MS, QUICK),
    "tolerance_rate_duration": Probe("hour", {"tolerance_rate_limit": 1}, rows=2, told="rate.limit"),
}
#: Of a sending job. A sink is there unless `base` says otherwise.
JOB = {
    "dead_letter_sink": Probe((Sink(uri="scripted:0"),), {"dead_letter_sink": ()}),
    "retry": Probe(2, {}),
    "backoff_policy": Probe("linear", GROWING),
    "backoff_delay": Probe(SECOND, {"retry": 3}),
    "backoff_max": Probe(MS, GROWING),
    "backoff_profile": Probe("knative-code", GROWING),
    "timeout": Probe(SECOND, {}),
    "retry_after_max": Probe(MS, {"retry": 1}, fate="throttled"),
    "format": Probe("json", {}),
    "dead_letter_dialects": Probe(("connect",), {}, told="__connect.errors."),
    "dead_letter_type": Probe("com.dead", {}, told="com.dead"),
    "letter_key": Probe("env:PROBE_KEY", {}, told='"mac"'),
    "retry_timeout": Probe(SECOND, {"retry": 9}),
    "retry_delay_max": Probe(MS, GROWING),
    "tolerance": Probe("none", {}),
    "tolerance_limit": Probe(1, {}, rows=2),
    "tolerance_rate_limit": Probe(1, {}, rows=2),
    "tolerance_rate_duration": Probe("hour", {"tolerance_rate_limit": 1, **GROWING}, rows=2, told="within 3600 s"),
    "log_enable": Probe(False, {}),
    "log_include_messages": Probe(True, {"log_enable": True}),
    "log_include_configs": Probe(True, {"log_enable": True}, told="a-setting"),
    "sink_context_headers": Probe(False, {}),
    "sink_include_messages": Probe(True, {}),
    "sink_include_configs": Probe(True, {}, told="a-setting"),
    "sink_partitions": Probe(3, {}, told="errors.deadletterqueue.topic.partitions"),
    "sink_replication_factor": Probe(3, {}, told="errors.deadletterqueue.topic.replication.factor"),
    "allow_skip": Probe(True, {"dead_letter_sink": (), "tolerance": "all"}),
}


def spec_of(**said: Any) -> DeliverySpec:
    return DeliverySpec(**{"dead_letter_sink": (Sink(uri="scripted:0"),), **said})


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each attempt of a scripted broker may take, in seconds."""
    noted: list[float] = []
    send = ScriptedSender.send

    def noting(self: ScriptedSender, batch: Batch, *, deadline: float) -> None:
        noted.append(round(deadline - self._broker.clock.now, 3))
        send(self, batch, deadline=deadline)

    monkeypatch.setattr(ScriptedSender, "send", noting)
    monkeypatch.setenv("PROBE_KEY", "a key that signs letters")
    return noted


def seen_of_job(probe: Probe, said: dict[str, Any], caplog: pytest.LogCaptureFixture, attempts: list[float]) -> str:
    """All that is seen of a job: what was sent and when, what lies in the sink, the log, the report or the error."""
    caplog.clear()
    attempts.clear()
    seen: list[object] = []
    try:
        spec = spec_of(**said)
        support.check(spec, ScriptedBroker(FakeClock()).capabilities, "scripted")
        setup = EngineSetup(
            sinks=len(spec.dead_letter_sink), **{k: v for k, v in said.items() if k != "dead_letter_sink"}
        )
        origin = Origin(run="r", configs={"a-setting": "on"})
        setup.engine = Engine(setup.send_queues, spec, origin, setup.clock, lambda: 0.0)
        setup.work.script = {str(at): [probe.fate] * 99 for at in range(probe.rows)}
        try:
            setup.take(*map(str, range(probe.rows)), **EVENT)
            setup.run()
        finally:
            seen += [attempts, setup.work.sends, [(m.value, m.headers) for sink in setup.sinks for m in sink.stored]]
        seen.append(setup.engine.report.to_dict())
    except RedeliveryError as error:
        seen.append(f"{type(error).__name__}: {error}")
    return "\n".join(map(str, [*seen, caplog.text]))


def seen_of_subscription(
    probe: Probe, said: dict[str, Any], caplog: pytest.LogCaptureFixture, attempts: list[float]
) -> str:
    """The same of a subscription; what a clock says is left out, but for the delays asked for, in milliseconds."""
    caplog.clear()
    attempts.clear()
    seen: list[object] = []
    try:
        setup = SubscriptionSetup(*(message(str(at), **EVENT) for at in range(probe.rows)), sinks=1)
        setup.spec = spec_of(**said)

        def handler(_message: Message) -> None:
            if probe.fate == "slow":
                threading.Event().wait(0.4)
            elif probe.fate == "throttled":
                raise Throttled("busy", retry_after=0.1)
            else:
                raise ValueError("no such airport")

        subscription = setup.subscription(handler, name="probe", options={"leasing.a-setting": "on"})
        try:
            report = subscription.run(until_empty=True)
            seen += [report.accepted, report.skipped, report.dead_lettered]
        finally:
            delays = [o.delay // MS if isinstance(o, Retry) else type(o).__name__ for _, o in setup.queue.settled]
            seen += [delays, [(m.value, m.headers) for sink in setup.sinks for m in sink.stored]]
    except RedeliveryError as error:
        seen.append(f"{type(error).__name__}: {error}")
    logged = "\n".join(record.getMessage() for record in caplog.records)
    kept, letters = [str(each) for each in seen], f"{seen[-1]}\n{logged}"
    return "\n".join([*kept[:-1], re.sub(r"\d{4,}[-T:.0-9+]*|(?<=_ms\": )\d+", "#", letters)])


@pytest.mark.parametrize("name", NAMES)
def test_each_field_changes_a_job_or_is_refused(
    name: str, caplog: pytest.LogCaptureFixture, attempts: list[float]
) -> None:
    probe = JOB[name]
    with caplog.at_level(logging.WARNING):
        without = seen_of_job(probe, probe.base, caplog, attempts)
        assert seen_of_job(probe, probe.base, caplog, attempts) == without, "what is seen is not steady"
        with_it = seen_of_job(probe, {**probe.base, name: probe.value}, caplog, attempts)
    assert with_it != without, f"{name} is ignored without a word"
    assert probe.told in with_it


@pytest.mark.parametrize("name", NAMES)
def test_each_field_changes_a_subscription_or_is_refused(
    name: str, caplog: pytest.LogCaptureFixture, attempts: list[float]
) -> None:
    probe = {**JOB, **SUBSCRIPTION}[name]
    with caplog.at_level(logging.WARNING):
        without = seen_of_subscription(probe, probe.base, caplog, attempts)
        assert seen_of_subscription(probe, probe.base, caplog, attempts) == without, "what is seen is not steady"
        with_it = seen_of_subscription(probe, {**probe.base, name: probe.value}, caplog, attempts)
    assert with_it != without, f"{name} is ignored without a word"
    assert probe.told in with_it


@pytest.mark.parametrize("name", NAMES)
def test_each_field_is_told_by_a_plan_or_refused(name: str, tmp_path: Path) -> None:
    probe = JOB[name]

    def planned(**said: Any) -> str:
        try:
            spec = spec_of(**{"dead_letter_sink": (Sink(uri="native"),), **said})
            return json.dumps(as_dict(provisioning.plan(f"sqlite:{tmp_path}/q.db", spec)))
        except ConfigurationError as error:
            return str(error)

    with_it = planned(**{**probe.base, name: probe.value})
    assert with_it != planned(**probe.base)
    assert support.name_of(name) in with_it or name == "allow_skip"


#: A field that is said and changes nothing beside the others that are said.
IDLE = [
    ("format", "json", {"dead_letter_sink": (), **SKIPPING}),
    ("dead_letter_type", "com.dead", {"dead_letter_sink": (), **SKIPPING}),
    ("letter_key", "env:PROBE_KEY", {"sink_context_headers": False}),
    ("dead_letter_dialects", ("connect",), {"sink_context_headers": False}),
    ("sink_include_messages", True, {"sink_context_headers": False}),
    ("sink_include_configs", True, {"sink_context_headers": False}),
    ("backoff_max", MS, {"retry": 0}),
    ("backoff_delay", SECOND, {"dead_letter_sink": (), **SKIPPING}),
    ("tolerance_limit", 1, {"tolerance": "none"}),
    ("tolerance_rate_limit", 1, {"tolerance": "none"}),
    ("tolerance_rate_duration", "hour", {"retry": 1}),
    ("log_include_messages", True, {"log_enable": False}),
    ("log_include_messages", True, {"retry": 1}),
    ("log_include_configs", True, {"log_enable": False}),
    ("allow_skip", True, {"retry": 1}),
    ("allow_skip", True, {"dead_letter_sink": ()}),
]


@pytest.mark.parametrize(("name", "value", "base"), IDLE)
def test_a_field_that_is_told_to_have_no_effect_has_none(
    name: str, value: object, base: dict[str, Any], caplog: pytest.LogCaptureFixture, attempts: list[float]
) -> None:
    said = list(support.without_effect(spec_of(**base, **{name: value})))
    assert [each.partition(":")[0] for each in said] == [support.name_of(name)]
    probe = Probe(value, base)
    assert seen_of_job(probe, {**base, name: value}, caplog, attempts) == seen_of_job(probe, base, caplog, attempts)


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_changes_a_job_is_never_told_to_have_no_effect(name: str) -> None:
    if name not in {"allow_skip", *support.PROVISIONED}:
        assert not list(support.without_effect(spec_of(**{**JOB[name].base, name: JOB[name].value})))


@pytest.mark.parametrize("name", support.PROVISIONED)
def test_what_a_destination_cannot_do_is_refused_before_anything_is_sent(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, work = support.name_of(name), scripted()
    spec = spec_of(**{name: 3})
    with pytest.raises(ConfigurationError, match=written):
        Delivery.open(
            "scripted:work", spec, origin=Origin(run="r"), connection_factory=Lent(**{"work": work, "0": scripted()})
        )
    assert work.senders == 0
    setup = SubscriptionSetup(message("a"))
    with pytest.raises(ConfigurationError, match=written):
        Subscription("leasing:q", print, spec=spec, connection_factory=setup.connection_factory, name="refused").run(
            until_empty=True
        )
    with pytest.raises(ConfigurationError, match=written):  # on Spark's driver
        read_write_options({"url": f"sqlite:{tmp_path}/q.db", "deadLetterSink": "native", written: "3"})
    for command in ("plan", "apply", "drift"):
        assert cli.main([command, f"sqlite:{tmp_path}/q.db", "--option", f"{written}=3"]) == 2
        assert written in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_provisioning_alone_does_is_told_by_what_delivers(caplog: pytest.LogCaptureFixture) -> None:
    work, sink = scripted(), scripted()
    work.capabilities = replace(work.capabilities, sink_partitions=Support.NATIVE)
    lent = Lent(**{"work": work, "0": sink})
    with Delivery.open(
        "scripted:work", spec_of(sink_partitions=3), origin=Origin(run="r"), connection_factory=lent
    ) as delivery:
        delivery.finish()
    assert "errors.deadletterqueue.topic.partitions: is for `redelivery apply`" in caplog.text


def test_a_plan_says_what_has_no_effect_and_the_defaults_that_are_in_force(tmp_path: Path) -> None:
    spec = DeliverySpec(retry=3, backoff_delay=SECOND, sink_include_configs=True)
    found = as_dict(provisioning.plan(f"sqlite:{tmp_path}/q.db", spec))
    assert found["approximations"] == [
        "errors.deadletterqueue.include.configs: has no effect, for no deadLetterSink is set"
    ]
    assert found["fields"]["backoffMax"] == "PT1H (default)"  # type: ignore[index]
    assert found["fields"]["errors.tolerance"] == "none (default)"  # type: ignore[index]


def test_a_refs_kind_is_refused_on_the_driver(tmp_path: Path) -> None:
    ref = json.dumps({"ref": {"kind": "Service", "apiVersion": "serving.knative.dev/v1", "name": "x"}})
    with pytest.raises(ConfigurationError, match=r"Service\.serving\.knative\.dev/x"):
        read_write_options({"url": f"sqlite:{tmp_path}/q.db", "deadLetterSink": ref})


def rows() -> Iterator[list[str]]:
    """The cells of the table in the documentation."""
    for line in (ROOT / "docs" / "delivery_spec.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_documentation_says_of_every_field_what_becomes_of_it() -> None:
    table = {cells[0].strip("` "): cells[1:] for cells in rows()}
    assert set(table) == {support.name_of(name) for name in NAMES}
    for name in NAMES:
        _, job, subscription, plan = table[support.name_of(name)]
        refused = name in support.PROVISIONED
        assert job.startswith("refused" if refused else "honoured"), name
        assert subscription.startswith("refused" if refused else "honoured"), name
        assert plan, name
