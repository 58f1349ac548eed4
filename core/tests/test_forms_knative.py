"""Knative's YAML and JSON: specs, the documents that hold them, and statuses."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from strategies_spec import NAMES, REFS, specs

from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec, DeliveryStatus, Ref, Sink
from redelivery.errors import ConfigurationError, InvalidSpec, UnknownOption
from redelivery.formats.specs import knative

BARE = """
deadLetterSink:
  ref: {apiVersion: v1, kind: Queue, name: letters, namespace: jobs}
  uri: /poison
retry: 5
backoffPolicy: exponential
backoffDelay: PT0.5S
timeout: PT30S
retryAfterMax: PT2M
format: binary
"""
SPEC = DeliverySpec(
    dead_letter_sink=(Sink(uri="/poison", ref=Ref(api_version="v1", kind="Queue", name="letters", namespace="jobs")),),
    retry=5,
    backoff_policy="exponential",
    backoff_delay=timedelta(milliseconds=500),
    timeout=timedelta(seconds=30),
    retry_after_max=timedelta(minutes=2),
    format="binary",
)


def as_read_back(spec: DeliverySpec) -> DeliverySpec:
    """Limits without a sink speak for an unsaid tolerance, so what it means is written out."""
    limited = spec.tolerance_limit is not None or spec.tolerance_rate_limit is not None
    if spec.tolerance is None and limited and not spec.dead_letter_sink:
        return replace(spec, tolerance="none")
    return spec


@given(specs())
def test_every_spec_is_read_back_as_it_was_written(spec: DeliverySpec) -> None:
    written = knative.write(spec)
    assert knative.read(written) == as_read_back(spec)


@given(specs())
def test_every_spec_survives_yaml_and_json(spec: DeliverySpec) -> None:
    written = knative.write(spec)
    assert knative.read(json.dumps(written, indent="\t")) == as_read_back(spec)
    assert knative.read(yaml.safe_dump(written)) == as_read_back(spec)


@pytest.mark.parametrize("around", [(), ("delivery",), ("spec", "delivery")])
def test_a_spec_stands_alone_or_in_a_document(around: tuple[str, ...]) -> None:
    document = yaml.safe_load(BARE)
    for name in reversed(around):
        document = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", name: document} if around else document
    for form in (document, json.dumps(document), yaml.safe_dump(document)):
        assert knative.read(form) == SPEC


def test_only_names_of_knative_are_written_beside_our_extension() -> None:
    assert knative.write(SPEC) == yaml.safe_load(BARE)
    assert knative.write(replace(SPEC, allow_skip=True, retry_timeout=FOREVER, retry=UNLIMITED)) == {
        **{name: value for name, value in yaml.safe_load(BARE).items() if name != "retry"},
        "redelivery": {"allowSkip": True, "errors.retry.timeout": -1, "errors.retry.limit": -1},
    }


def test_the_smallest_document_says_nothing() -> None:
    assert knative.read({}) == knative.read("{}") == knative.read("retry:") == DeliverySpec()
    assert knative.write(DeliverySpec()) == {}


@pytest.mark.parametrize(
    ("written", "sinks"),
    [
        ({"uri": "native"}, (Sink(uri="native"),)),
        ("native", (Sink(uri="native"),)),
        ("scheme://a b", None),
        ({"ref": {"kind": "k", "name": "n"}}, (Sink(ref=Ref(kind="k", name="n")),)),
        (["native", {"uri": "file:///x"}], (Sink(uri="native"), Sink(uri="file:///x"))),
        ([], ()),
        ({"uri": "x", "options": {"acks": 0, "flag": True}}, (Sink(uri="x", options={"acks": "0", "flag": "true"}),)),
        (
            {"uri": "x", "CACerts": "pem", "audience": "letters", "options": {"token": "file:/t"}},
            (Sink(uri="x", options={"token": "file:/t", "ssl.ca.pem": "pem", "audience": "letters"}),),
        ),
        ({"uri": "x", "CACerts": None, "audience": None}, (Sink(uri="x"),)),
    ],
)
def test_a_sink_is_a_destination_its_text_or_a_chain(written: Any, sinks: tuple[Sink, ...] | None) -> None:
    if sinks is None:
        with pytest.raises(InvalidSpec, match="%20"):
            knative.read({"deadLetterSink": written})
    else:
        assert knative.read({"deadLetterSink": written}).dead_letter_sink == sinks


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("retry: -1", "retry: must be a whole number from 0"),
        ("retry: 2147483648", "retry: "),
        ("retry: '3'", "retry: must be a whole number, not the text '3'"),
        ("retry: true", "retry: must be a whole number, not true or false"),
        ("retry: 3.5", "retry: must be a whole number, not a fraction"),
        ("backoffDelay: 5", "backoffDelay: must be text, not a number, as in 'PT5S'"),
        ("backoffDelay: 5s", "backoffDelay: must be an ISO-8601 duration"),
        ("backoffDelay: P1Y", "backoffDelay: 'P1Y' counts years"),
        ("timeout: PT0S", "timeout: must be more than 0"),
        ("backoffPolicy: constant", "backoffPolicy: must be one of linear, exponential"),
        ("backoffPolicy: linear", "backoffPolicy: needs backoffDelay"),
        ("format: avro", "format: "),
        ("deadLetterSink: {}", "deadLetterSink: give a uri"),
        ("deadLetterSink: 3", "deadLetterSink: each sink must be a mapping"),
        ("deadLetterSink: {uri: 3}", "deadLetterSink: uri must be text"),
        ("deadLetterSink: {ref: {kind: k}}", "deadLetterSink: ref.name is missing"),
        ("deadLetterSink: {ref: {kind: '', name: x}}", "deadLetterSink: ref.kind must be text"),
        ("deadLetterSink: {ref: x}", "deadLetterSink: ref must be a mapping"),
        ("deadLetterSink: {uri: 'a:b', ref: {kind: k, name: n}}", "deadLetterSink: uri 'a:b' stands beside a ref"),
        ("deadLetterSink: {uri: x, options: {acks: [1]}}", "deadLetterSink: options.acks must be"),
        ("deadLetterSink: {uri: x, CACerts: [a]}", "deadLetterSink: CACerts must be text"),
        ("deadLetterSink: {uri: x, audience: ''}", "deadLetterSink: audience must be text"),
        (
            "deadLetterSink: {uri: x, audience: a, options: {audience: b}}",
            "deadLetterSink: audience and options.audience mean the same",
        ),
        ("redelivery: {errors.tolerance: some}", "redelivery.errors.tolerance: must be one of none, all"),
        ("redelivery: {allowSkip: 1}", "redelivery.allowSkip: must be true or false"),
        ("redelivery: 3", "redelivery must be a mapping"),
        ("{retry: 3, redelivery: {errors.retry.limit: 3}}", "retry and redelivery.errors.retry.limit"),
        ("{backoffMax: PT1S, redelivery: {errors.retry.delay.max.ms: 3}}", "backoffMax and redelivery.errors.retry"),
        ("{retry: 3, delivery: {}}", "retry: stands beside 'delivery'"),
        ("spec: {retry: 3, delivery: {}}", "retry: stands beside 'spec.delivery'"),
        ("spec: {subscriber: {}}", "spec: has no 'delivery'"),
        ("delivery: 3", "delivery must be a mapping"),
        ("retry: 3\nretry: 4", "retry: written twice"),
        ('{"retry": 3, "retry": 4}', "retry: written twice"),
        ("yes: 3", "the field True is not text"),
        ("", "must be a mapping"),
        ("3", "must be a mapping"),
        ("[1]", "must be a mapping"),
        ("retry: [", "not valid YAML or JSON at line"),
        ("retry: 1\n---\nretry: 2", "not valid YAML or JSON at line"),
        ("retry: \x00", "characters that YAML does not allow"),
        ("when: 2020-13-45", "impossible number or date"),
        ("retry: !!python/object:os.system {}", "not valid YAML or JSON at line"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_wrong_document_is_refused_naming_the_field(document: str, names: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        knative.read(document)
    assert names in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("retries: 3", "unknown field 'retries'; did you mean 'retry'?"),
        ("Retry: 3", "unknown field 'Retry'; did you mean 'retry'?"),
        ("backOffDelay: PT1S", "unknown field 'backOffDelay'; did you mean 'backoffDelay'?"),
        ("allowSkip: true", "unknown field 'allowSkip'"),
        ("deadLetterSink: {url: x}", "unknown field 'deadLetterSink.url'; did you mean 'deadLetterSink.uri'?"),
        ("deadLetterSink: {ref: {nam: x}}", "unknown field 'ref.nam'; did you mean 'ref.name'?"),
        ("redelivery: {alowSkip: true}", "unknown field 'redelivery.alowSkip'; did you mean 'redelivery.allowSkip'?"),
        ("redelivery: {retry: 3}", "unknown field 'redelivery.retry'"),
        ("redelivery: {errors.deadletterqueue.topic.name: x}", "unknown field 'redelivery.errors.deadletterqueue."),
    ],
)
def test_an_unknown_field_is_refused_naming_the_nearest(document: str, message: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        knative.read(document)
    assert message in str(caught.value)


def test_an_error_quotes_nothing_of_the_text_around_it() -> None:
    with pytest.raises(InvalidSpec) as caught:
        knative.read("deadLetterSink:\n  uri: scheme://user:hunter2@host\n  options: {password: hunter2, x: [")
    assert "hunter2" not in str(caught.value)


@given(st.text() | st.from_regex(r"[a-zA-Z:\[\]{}&*!|>'\"%@, \n-]{0,30}", fullmatch=True))
def test_any_text_is_either_read_or_refused_by_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        knative.read(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = ("deadLetterSink", "retry", "backoffPolicy", "backoffDelay", "timeout", "format", "redelivery")


@given(st.dictionaries(st.sampled_from([*FIELD_NAMES, "spec", "delivery"]), JSON, max_size=3))
def test_any_mapping_is_either_read_or_refused_by_a_configuration_error(document: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigurationError):
        knative.read(document)


URIS = NAMES.map("scheme://host/{}".format)
STATUSES = st.builds(DeliveryStatus, dead_letter_sink_uri=st.none() | URIS, dead_letter_channel=st.none() | REFS)


@given(STATUSES)
def test_every_status_is_read_back_as_it_was_written(status: DeliveryStatus) -> None:
    assert knative.status_from_dict(knative.status_to_dict(status)) == status


def test_a_status_speaks_both_texts() -> None:
    channel = Ref(api_version="v1", kind="Queue", name="letters", namespace="jobs")
    status = DeliveryStatus(dead_letter_sink_uri="scheme://user:hunter2@host/x", dead_letter_channel=channel)
    assert knative.status_to_dict(status) == {
        "deadLetterSinkUri": "scheme://user:***@host/x",
        "deadLetterChannel": {"kind": "Queue", "name": "letters", "apiVersion": "v1", "namespace": "jobs"},
    }
    assert knative.status_to_dict(DeliveryStatus()) == {}


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({"deadLetterSinkURI": "x"}, "did you mean 'deadLetterSinkUri'"),
        ({"deadLetterSinkUri": 3}, "deadLetterSinkUri: must be text"),
        ({"deadLetterChannel": {"kind": "k"}}, "deadLetterChannel: ref.name is missing"),
    ],
)
def test_a_wrong_status_is_refused_naming_the_field(written: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        knative.status_from_dict(written)
    assert names in str(caught.value)
