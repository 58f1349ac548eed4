"""Hypothesis strategies for delivery specs: every spec that the written forms can say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

from hypothesis import strategies as st

from redelivery.contract.spec import FOREVER, DeliverySpec, LetterDialect, Ref, Sink

text = st.text(min_size=1, max_size=12)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True)
#: URLs and odder things, but nothing that a URI never holds: spaces and control characters.
URLS = st.builds(
    "{}:{}".format,
    st.sampled_from(["file", "scheme", "S3+x"]),
    st.one_of(
        st.sampled_from(["///letters", "//user@host:1,other:2/a%20b?x=y,z&t=[1]#f", "{odd}"]),
        st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), max_size=12),
    ),
)
ODD_NAMES = st.sampled_from(["[odd", "{odd}", "/path?a=b:c", "../x", '"', "'", "#", "null", "3"])
REFS = st.builds(Ref, kind=text, name=text, api_version=st.just("") | text, namespace=st.just("") | text)
CLIENT_OPTIONS = st.dictionaries(text, st.text(max_size=12), max_size=3)
SINKS = st.one_of(
    st.just(Sink(uri="native")),
    st.builds(Sink, uri=NAMES | ODD_NAMES | URLS, options=CLIENT_OPTIONS, type=st.none() | text),
    st.builds(Sink, ref=REFS, uri=st.just("") | NAMES | ODD_NAMES, options=CLIENT_OPTIONS),
)

DURATIONS = st.timedeltas(timedelta(0), timedelta.max)
SOME_DURATIONS = st.timedeltas(timedelta(microseconds=1), timedelta.max)
LONGEST_MS = timedelta.max // timedelta(milliseconds=1)


def milliseconds(least: int) -> st.SearchStrategy[timedelta]:
    return st.integers(least, LONGEST_MS).map(lambda count: timedelta(milliseconds=1) * count) | st.just(FOREVER)


COUNTS = st.one_of(st.integers(-1, 5), st.integers(-1, 2**63 - 1))
FLAGS = st.booleans()
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "retry": COUNTS,
    "timeout": SOME_DURATIONS,
    "retry_after_max": DURATIONS,
    "format": st.sampled_from(["json", "binary"]),
    "retry_timeout": milliseconds(0),
    "tolerance": st.sampled_from(["none", "all"]),
    "tolerance_limit": COUNTS,
    "tolerance_rate_limit": COUNTS,
    "tolerance_rate_duration": st.sampled_from(["minute", "hour", "day"]),
    "log_enable": FLAGS,
    "log_include_messages": FLAGS,
    "log_include_configs": FLAGS,
    "sink_context_headers": FLAGS,
    "sink_include_messages": FLAGS,
    "sink_include_configs": FLAGS,
    "sink_partitions": st.integers(1, 2**31 - 1),
    "sink_replication_factor": st.integers(1, 2**15 - 1),
    "dead_letter_dialects": st.lists(st.sampled_from(get_args(LetterDialect)), min_size=1, unique=True).map(tuple),
    "dead_letter_type": st.from_regex(r"[!-~]{1,12}", fullmatch=True),
    "letter_key": st.from_regex(r"env:[A-Z]{1,8}", fullmatch=True),
    "allow_skip": FLAGS,
}


@st.composite
def specs(draw: st.DrawFn) -> DeliverySpec:
    fields: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=FIELDS))
    fields["dead_letter_sink"] = tuple(draw(st.lists(SINKS, max_size=3)))
    if draw(FLAGS):
        fields["backoff_delay"] = draw(DURATIONS)
        fields["backoff_policy"] = draw(st.sampled_from([None, "linear", "exponential"]))
        fields["backoff_profile"] = draw(st.sampled_from([None, "knative", "knative-code"]))
    else:
        fields["backoff_profile"] = draw(st.sampled_from([None, "connect"]))
    caps = {"none": st.none(), "backoff_max": DURATIONS, "retry_delay_max": milliseconds(1)}
    cap = draw(st.sampled_from(sorted(caps)))
    if cap != "none":
        fields[cap] = draw(caps[cap])
    if fields.get("tolerance") == "all" and not fields["dead_letter_sink"]:
        fields["allow_skip"] = True
    return DeliverySpec(**fields)
