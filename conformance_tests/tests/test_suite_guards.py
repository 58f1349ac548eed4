"""Nothing in the suite is skipped, replaced or left unsaid quietly."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import ClassVar

import pytest

from redelivery.contract.broker import Capabilities, Limits, Support
from redelivery_conformance import BrokerSuite
from redelivery_conformance.containers import Container, image_for
from redelivery_conformance.harness import RUNTIME_KINDS, Harness, NotHere, Runtime, start
from redelivery_conformance.memory import MemoryHarness, MemoryRuntime

pytest_plugins = ["pytester"]

STATEMENTS = {name: test for name, test in inspect.getmembers(BrokerSuite) if name.startswith("test_")}
#: Nothing is asked for where it is absent, so nothing can raise.
WITHOUT_COUNTERPART: set[str] = set()


def marks(name, *statements):
    return {
        arg
        for test in statements or STATEMENTS.values()
        for mark in getattr(test, "pytestmark", ())
        if mark.name == name
        for arg in mark.args
    }


def replacement():
    def test(self, subject):
        pass

    return test


def supports():
    return {name for name, item in Capabilities.__dataclass_fields__.items() if item.default is Support.NONE}


def run(pytester, text, *arguments):
    pytester.makepyfile(test_inner=f"from redelivery_conformance import BrokerSuite\n{text}")
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", *arguments)


def test_there_are_at_least_25_statements_of_sending_and_30_of_receiving():
    receiving = {name for name in STATEMENTS if "receive" in marks("broker_has", STATEMENTS[name])}
    assert len(receiving) >= 30
    assert len(STATEMENTS.keys() - receiving) >= 25


def test_every_capability_has_a_statement_where_it_is_there():
    assert supports() - marks("broker_has") <= WITHOUT_COUNTERPART


def test_every_capability_has_a_statement_where_it_is_none():
    assert supports() - marks("broker_lacks") <= WITHOUT_COUNTERPART


def test_marks_name_capabilities_that_there_are():
    limits = {f"limits.{name}" for name in Limits.__dataclass_fields__}
    assert marks("broker_has") | marks("broker_lacks") <= set(Capabilities.__dataclass_fields__) | limits


def test_a_statement_cannot_be_replaced():
    with pytest.raises(TypeError, match=r"Quiet\.test_closing_twice_does_nothing replaces a statement"):
        type("Quiet", (BrokerSuite,), {"test_closing_twice_does_nothing": lambda self: None})


def test_a_statement_cannot_be_set_to_none():
    with pytest.raises(TypeError, match="replaces a statement"):
        type("Quiet", (BrokerSuite,), {"test_closing_twice_does_nothing": None})


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.xfail(reason="because"),
        pytest.mark.xfail(strict=True),
        pytest.mark.xfail(strict=True, reason="because", run=False),
        pytest.mark.skip(reason="because"),
    ],
    ids=["not-strict", "no-reason", "not-run", "skip"],
)
def test_a_replacement_needs_a_strict_xfail_with_a_reason(mark):
    with pytest.raises(TypeError, match="strict=True"):
        type("Quiet", (BrokerSuite,), {"test_closing_twice_does_nothing": mark(replacement())})


def test_a_known_fault_is_marked_as_one():
    known = pytest.mark.xfail(strict=True, reason="carrier#1")(replacement())
    type("Honest", (BrokerSuite,), {"test_closing_twice_does_nothing": known})


@pytest.mark.parametrize("mark", ["skip(reason='x')", "skipif(True, reason='x')", "xfail(reason='x')"])
def test_a_class_cannot_be_marked_so_that_it_cannot_fail(pytester, mark):
    text = f"import pytest\n@pytest.mark.{mark}\nclass TestQuiet(BrokerSuite):\n    broker = 'sqlite'\n"
    result = run(pytester, text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*may only be marked xfail(strict=True, reason=...)"])


def test_a_broker_without_a_harness_is_an_error_and_no_skip(pytester):
    result = run(pytester, "class TestIt(BrokerSuite):\n    broker = 'nobody'\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*no harness for 'nobody'*redelivery_testing*"])


NOT_HERE = """
from redelivery_conformance.harness import NotHere
from redelivery_conformance.memory import MemoryHarness
class Away(MemoryHarness):
    def starts(self):
        def no(scratch): raise NotHere("install carrier")
        return {"process": no}
class TestIt(BrokerSuite):
    broker = Away()
"""
ONE = ("-k", "closing_twice or without_a_sender")


def test_a_broker_that_is_not_here_is_skipped_with_what_to_install(pytester):
    result = run(pytester, NOT_HERE, *ONE)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["memory: none: *process: install carrier*"])


def test_require_brokers_turns_skips_into_failures(pytester):
    run(pytester, NOT_HERE, *ONE, "--require-brokers").assert_outcomes(errors=2)


MEMORY = """
from redelivery_conformance.memory import MemoryHarness
class TestIt(BrokerSuite):
    broker = MemoryHarness()
"""


def test_what_does_not_apply_is_told_with_the_capability_and_never_fails(pytester):
    result = run(pytester, MEMORY, *ONE, "--require-brokers")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["memory: embedded: *; 1 statements ran", "*not applicable: capability send is native: without_a_sender_*"]
    )
    result.stdout.fnmatch_lines(["1 passed, * 1 not applicable*"])


def test_what_a_runtime_cannot_show_is_told_and_fails_where_brokers_are_required(pytester):
    text = (
        MEMORY
        + "    def test_power(self, subject):\n        subject.place.__class__.__mro__[1].outage(subject.place)\n"
    )
    result = run(pytester, text, "-k", "test_power")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*not shown: an outage, refused: its harness has no `outage`*"])
    run(pytester, text, "-k", "test_power", "--require-brokers").assert_outcomes(failed=1)


def test_a_broker_that_is_not_named_is_left_out(pytester):
    assert run(pytester, MEMORY, *ONE, "--broker", "sqlite").ret in {0, pytest.ExitCode.NO_TESTS_COLLECTED}


def test_an_explicit_url_is_what_is_tested(pytester, tmp_path):
    url = f"sqlite://{tmp_path}/mine.db?queue=q"
    result = pytester.runpytest_inprocess(
        "--pyargs", "redelivery_conformance", "--broker-url", url, "-k", "stored_once and confirmed", "-q"
    )
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines([f"sqlite-url: url: *{tmp_path}/mine.db; 1 statements ran"])
    assert (tmp_path / "mine.db").exists()


class Ordered(Harness):
    name: ClassVar[str] = "ordered"
    here: ClassVar[set[str]] = set()

    def starts(self):
        def starter(kind):
            def begin(scratch: Path) -> Runtime:
                if kind not in self.here:
                    raise NotHere(f"no {kind}")
                runtime = MemoryRuntime()
                runtime.kind = kind
                return runtime

            return begin

        return {kind: starter(kind) for kind in reversed(RUNTIME_KINDS) if kind != "url"}


def test_runtimes_are_tried_from_the_truest_to_the_stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr(Ordered, "here", {"embedded", "process", "container"})
    for kind in ("container", "process", "embedded"):
        assert start(Ordered(), None, {}, tmp_path).kind == kind
        Ordered.here.discard(kind)
    with pytest.raises(NotHere, match="container: no container; process: no process; embedded: no embedded"):
        start(Ordered(), None, {}, tmp_path)


def test_a_url_is_never_replaced_by_something_that_is_here(tmp_path):
    with pytest.raises(NotHere, match="takes no URL"):
        start(MemoryHarness(), "memory://x/y", {}, tmp_path)


def test_an_image_is_named_by_a_variable(monkeypatch):
    assert image_for("carrier", "carrier:1") == "carrier:1"
    monkeypatch.setenv("REDELIVERY_CARRIER_IMAGES", "mirror/carrier:2 mirror/carrier:3")
    assert image_for("carrier", "carrier:1") == "mirror/carrier:3", "the newest"
    monkeypatch.setenv("REDELIVERY_CARRIER_IMAGE", "mirror/carrier:2")
    assert image_for("carrier", "carrier:1") == "mirror/carrier:2"


def test_without_testcontainers_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "testcontainers.core.container", None)
    with pytest.raises(NotHere, match="pip install testcontainers"):
        Container("carrier", "carrier:1", ports=[1])


STAND_IN = """
import pytest
from redelivery_conformance.memory import MemoryHarness, MemoryRuntime
from redelivery_conformance.statements import Statements
class StandIn(MemoryRuntime):
    gaps = {"a_thing_*": "it is no Carrier"}
class H(MemoryHarness):
    name = "stand-in"
    def starts(self):
        return {"embedded": lambda scratch: StandIn(), "process": lambda scratch: MemoryRuntime()}
class TestIt(Statements):
    broker = H()
    def test_a_thing_that_differs(self, subject):
        assert not FAILS
"""


def test_a_declared_gap_of_a_stand_in_is_run_and_told(pytester):
    result = run(pytester, STAND_IN + "FAILS = True", "--broker-kind", "embedded")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*gap of this stand-in: it is no Carrier: a_thing_that_differs*", "*1 xfailed*"])


def test_a_declared_gap_that_is_none_fails(pytester):
    result = run(pytester, STAND_IN + "FAILS = False", "--broker-kind", "embedded")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_each_kind_of_runtime_asked_for_is_a_target_of_its_own(pytester):
    result = run(pytester, STAND_IN + "FAILS = True", "--broker-kind", "embedded", "--broker-kind", "process", "-rA")
    result.stdout.fnmatch_lines(["*FAILED*stand-in-process*", "*1 failed*1 xfailed*"])


def test_parts_share_the_statements_and_leave_none_out(pytester):
    pytester.makepyfile(
        test_it="""
        from redelivery_conformance.memory import MemoryHarness
        from redelivery_conformance.suite import Settling

        class TestMemory(Settling):
            broker = MemoryHarness()
        """
    )

    def collected(*arguments: str) -> list[str]:
        out = pytester.runpytest("--collect-only", "-q", *arguments).outlines
        return [line for line in out if "::" in line]

    first, second, every = collected("--broker-part=1/2"), collected("--broker-part=2/2"), collected()
    assert sorted([*first, *second]) == sorted(every)
    assert abs(len(first) - len(second)) <= 1 < len(first)
    assert "write K/N" in "".join(pytester.runpytest("--collect-only", "--broker-part=3/2").errlines)


def test_a_local_statement_runs_once_for_a_plugin_and_again_for_another(pytester):
    pytester.makepyfile(
        test_it="""
        from redelivery_conformance.memory import MemoryHarness
        from redelivery_conformance.suite import Hostility

        first, another = MemoryHarness(), MemoryHarness()

        class TestOnce(Hostility):
            broker = first

        class TestTwice(Hostility):
            broker = first

        class TestAnother(Hostility):
            broker = another
        """
    )

    def collected(*arguments: str) -> set[str]:
        out = pytester.runpytest("--collect-only", "-q", "-k", "hostile_url or hostile_rows", *arguments).outlines
        return {line.partition("::")[2].partition("[")[0] for line in out if "::" in line}

    local, asks = "test_a_hostile_url_is_opened_or_refused_in_one_short_line", "test_hostile_rows_are_stored_or_refused"
    found = collected()
    assert {each.partition("::")[0] for each in found if local in each} == {"TestOnce", "TestAnother"}
    assert {each.partition("::")[0] for each in found if asks in each} == {"TestOnce", "TestTwice", "TestAnother"}
    assert any(local in each for each in collected("test_it.py::TestTwice"))


CLAIMING = """
from dataclasses import replace
from redelivery.contract.broker import Support
from redelivery_conformance.memory import READ_ONLY, MemoryBroker, MemoryHarness
class Claiming(MemoryBroker):
    capabilities = replace(READ_ONLY{claim})
class TestIt(BrokerSuite):
    broker = MemoryHarness(Claiming)
"""


def test_a_native_capability_that_no_statement_has_shown_fails_the_run(pytester):
    """Its statements need a receiver, and the plugin has none: nothing ever tries what the table claims."""
    result = run(pytester, CLAIMING.format(claim=", reason=Support.NATIVE"), "--require-brokers")
    result.assert_outcomes(failed=0, errors=0, passed=result.parseoutcomes()["passed"], skipped=0)
    result.stdout.fnmatch_lines(["*said to be native, and shown by no statement: reason"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_part_of_the_suite_says_nothing_of_what_it_leaves_out(pytester):
    result = run(pytester, CLAIMING.format(claim=", reason=Support.NATIVE"), "--require-brokers", "-k", "closing_twice")
    result.stdout.no_fnmatch_line("*shown by no statement*")
    assert result.ret == pytest.ExitCode.OK
