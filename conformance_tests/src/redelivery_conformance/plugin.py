"""The pytest plugin: its options, the fixture `subject`, and the report of the brokers under test.

Every pytest session in an environment with this distribution loads it, so it does nothing until a class of statements
is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from redelivery.contract.capabilities import Capabilities
    from redelivery_conformance.harness import NotHere
    from redelivery_conformance.subject import Subject
    from redelivery_conformance.targets import Target, Targets

_TARGETS: pytest.StashKey[Targets] = pytest.StashKey()
_NOT_APPLICABLE = "not applicable: "
_NOT_SHOWN = "not shown: "


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("redelivery", "redelivery's conformance suite")
    add = group.addoption
    add("--broker", action="append", default=[], metavar="NAME", help="test this plugin only; repeatable")
    add(
        "--broker-url",
        action="append",
        default=[],
        metavar="URL",
        help="test against this broker rather than one started here; it is written to. Repeatable",
    )
    add(
        "--broker-option",
        action="append",
        default=[],
        metavar="PLUGIN.NAME=VALUE",
        help="a client option to open --broker-url with; a value may be a reference, as env:NAME. Repeatable",
    )
    add(
        "--broker-kind",
        action="append",
        default=[],
        choices=["container", "process", "embedded"],
        help="start this kind of runtime, where a plugin has it, and no other; repeatable: each is tested",
    )
    add(
        "--broker-part",
        metavar="K/N",
        default="1/1",
        help="run every N-th statement, beginning with the K-th: N processes with a broker each run all of them",
    )
    add(
        "--require-brokers",
        action="store_true",
        help="a broker that is not available here, or that cannot show a statement, is a failure, not a skip",
    )


def pytest_configure(config: pytest.Config) -> None:
    from redelivery_conformance.statements import MARKERS  # noqa: PLC0415 - see above

    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from redelivery_conformance.statements import Statements  # noqa: PLC0415 - see above
    from redelivery_conformance.targets import NoHarness  # noqa: PLC0415 - see above

    if metafunc.cls is not None and issubclass(metafunc.cls, Statements) and "subject" in metafunc.fixturenames:
        try:
            found = _targets(metafunc.config).of(metafunc.cls.broker)
        except NoHarness as error:
            raise pytest.Collector.CollectError(f"{metafunc.cls.__name__}: {error}") from None
        metafunc.parametrize("subject", found, ids=[target.id for target in found], indirect=True)


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from redelivery_conformance.statements import quiet_marks  # noqa: PLC0415 - see above

    targets = config.stash.get(_TARGETS, None)
    if targets is None:
        return
    quiet = quiet_marks(items)
    if quiet:
        raise pytest.UsageError("\n".join(quiet[:10]))
    wanted = _once_a_plugin(item for item in items if targets.wanted(_target(item)))
    part = _part(config, wanted)
    kept = {item for item in wanted if part(item)}
    left_out = [item for item in items if item not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in kept]
    _note_left_out(targets, items)


def _note_left_out(targets: Targets, items: Iterable[pytest.Item]) -> None:
    """Note for each target which statements of the whole suite this run has not."""
    from redelivery_conformance.suite import BrokerSuite  # noqa: PLC0415 - see above

    found: dict[Target, set[str]] = {}
    for item in items:
        found.setdefault(_target(item), set()).add(getattr(item, "originalname", item.name))
    every = {
        name
        for name in dir(BrokerSuite)
        if name.startswith("test_")
        and not {mark.name for mark in getattr(getattr(BrokerSuite, name), "pytestmark", ())} & {"local", "spark"}
    }
    for target, names in found.items():
        targets.account(target).left_out = every - names


def _once_a_plugin(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Leave out statements marked `local` that run on another runtime of the same plugin already."""
    kept, shown = [], set()
    for item in items:
        what = (_target(item).plugin, _statement(item).rpartition("::")[2])
        if item.get_closest_marker("local") is None or what not in shown:
            kept.append(item)
        shown.add(what)
    return kept


def _part(config: pytest.Config, items: list[pytest.Item]) -> Callable[[pytest.Item], bool]:
    """Return a filter for the items of `--broker-part`. All kinds of runtime of one statement stay in one part."""
    number, slash, parts = config.getoption("--broker-part").partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 0 < int(number) <= int(parts)):
        raise pytest.UsageError("--broker-part: write K/N, as in 1/2")
    names = {name: at for at, name in enumerate(dict.fromkeys(map(_statement, items)))}
    return lambda item: names[_statement(item)] % int(parts) == int(number) - 1


def _statement(item: pytest.Item) -> str:
    """Return an item's name without its broker."""
    return item.nodeid.replace(_target(item).id, "")


def not_here(config: pytest.Config, error: NotHere) -> NoReturn:
    """End a test whose broker is missing: skip it, or fail it if brokers are required."""
    if config.getoption("--require-brokers"):
        pytest.fail(f"--require-brokers: {error}", pytrace=False)
    pytest.skip(str(error))


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Return the broker under test, at a fresh place."""
    from redelivery_conformance.harness import NotHere  # noqa: PLC0415 - see above
    from redelivery_conformance.subject import NotApplicable, Subject, check_applies  # noqa: PLC0415 - see above

    target: Target = request.param
    targets = _targets(request.config)
    account = targets.account(target)
    try:
        runtime = targets.runtime(target)
    except NotHere as error:
        not_here(request.config, error)
    assert target.harness is not None
    with runtime.place() as place:
        made = Subject(target.harness, runtime, place)
        try:
            try:
                check_applies(request.node, made.capabilities, runtime.absent)
            except NotApplicable as error:
                account.not_applicable.setdefault(str(error), []).append(_short(request.node))
                pytest.skip(f"{_NOT_APPLICABLE}{error}")
            gap = next((why for name, why in runtime.gaps.items() if fnmatchcase(_short(request.node), name)), None)
            if gap is not None:
                request.applymarker(pytest.mark.xfail(strict=True, reason=gap))
                account.gaps.setdefault(gap, []).append(_short(request.node))
                account.shown.update(_needed(request.node))  # the gap is reported, and must fail
            account.ran += 1
            account.native |= _claims(made.capabilities)
            yield made
        finally:
            made.close()


@pytest.fixture
def subjects(request: pytest.FixtureRequest) -> Iterator[list[Subject]]:
    """Return one subject per available broker, for statements about all brokers together."""
    from redelivery_conformance.harness import NotHere  # noqa: PLC0415 - see above
    from redelivery_conformance.subject import Subject  # noqa: PLC0415 - see above

    targets = _targets(request.config)
    found: dict[str, Subject] = {}
    with ExitStack() as stack:
        for target in targets.of(None):
            if target.harness is None or target.harness.name in found:
                continue
            try:
                runtime = targets.runtime(target)
            except NotHere as error:
                if request.config.getoption("--require-brokers"):
                    pytest.fail(f"--require-brokers: {error}", pytrace=False)
                continue
            made = Subject(target.harness, runtime, stack.enter_context(runtime.place()))
            stack.callback(made.close)
            targets.account(target).ran += 1
            found[target.harness.name] = made
        yield list(found.values())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Report a statement that this runtime cannot show; fail it under `--require-brokers`."""
    from redelivery_conformance.harness import CannotShow  # noqa: PLC0415 - see above
    from redelivery_conformance.subject import NotApplicable  # noqa: PLC0415 - see above

    try:
        result = yield
    except CannotShow as error:
        reason, shown, name = str(error), _NOT_SHOWN, "not_shown"
        if pyfuncitem.config.getoption("--require-brokers"):
            pytest.fail(f"--require-brokers: {_NOT_SHOWN}{reason}", pytrace=False)
    except NotApplicable as error:
        reason, shown, name = str(error), _NOT_APPLICABLE, "not_applicable"
    else:
        if _target(pyfuncitem).harness is not None:
            _targets(pyfuncitem.config).account(_target(pyfuncitem)).shown.update(_needed(pyfuncitem))
        return result
    account = _targets(pyfuncitem.config).account(_target(pyfuncitem))
    getattr(account, name).setdefault(reason, []).append(_short(pyfuncitem))
    account.ran -= 1
    pytest.skip(shown + reason)


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Give statements that do not apply their own category, neither passed nor skipped."""
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    for what, letter in ((_NOT_APPLICABLE, "n"), (_NOT_SHOWN, "c")):
        if reason.removeprefix("Skipped: ").startswith(what):
            name = what.removesuffix(": ")
            return name, letter, name.upper()
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with `--require-brokers` of the whole suite that leaves a native capability unshown."""
    targets = session.config.stash.get(_TARGETS, None)
    if targets is None or not session.config.getoption("--require-brokers") or session.exitstatus:
        return
    if any(account.unshown for account in targets.accounts.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    targets = config.stash.get(_TARGETS, None)
    if targets is None or not targets.accounts:
        return
    terminalreporter.section("brokers under test")
    for account in targets.accounts.values():
        for line in account.lines():
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    targets = config.stash.get(_TARGETS, None)
    if targets is not None:
        targets.close()


def _targets(config: pytest.Config) -> Targets:
    """Return the session's targets; create them on the first call."""
    if _TARGETS not in config.stash:
        from redelivery_conformance.targets import Targets  # noqa: PLC0415 - see above

        options = {}
        for text in config.getoption("--broker-option"):
            name, equals, value = text.partition("=")
            if not equals:
                raise pytest.UsageError("--broker-option: write PLUGIN.NAME=VALUE, where VALUE may be env:NAME")
            options[name] = value
        factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - no public way here
        config.stash[_TARGETS] = Targets(
            config.getoption("--broker-url"),
            config.getoption("--broker"),
            options,
            config.getoption("--broker-kind"),
            lambda name: factory.mktemp(f"broker-{name}"),
        )
    return config.stash[_TARGETS]


def _target(item: pytest.Item) -> Target:
    """Return the broker of an item; other tests share a target without a harness."""
    from redelivery_conformance.targets import Target  # noqa: PLC0415 - see above

    found = getattr(getattr(item, "callspec", None), "params", {}).get("subject")
    return found if isinstance(found, Target) else Target(None)


def _claims(capabilities: Capabilities) -> set[str]:
    """Return what is declared native. Only an admin role says anything about the depth."""
    from redelivery.contract.capabilities import FEATURES, Support  # noqa: PLC0415 - see above

    native = {name for name in FEATURES if getattr(capabilities, name) is Support.NATIVE}
    return native if capabilities.provision else native - {"depth"}


def _needed(item: pytest.Item) -> Iterator[str]:
    """Yield the capabilities that a statement is about."""
    return (name for mark in item.iter_markers("broker_has") for name in mark.args)


def _short(item: pytest.Item) -> str:
    return item.name.removeprefix("test_")
