"""Discovery: what is installed is found, what is broken is named with its cause and harms no other."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from redelivery import registry as redelivery_plugins
from redelivery.contract.broker import CONTRACT_VERSION, Broker, BrokerPlugin, Capabilities
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.errors import ConfigurationError, InvalidURL, PluginError, UnknownOption, UnknownScheme
from redelivery.formats import dialects
from redelivery.registry import GROUP, Registry, client_options, connect, discover, open_broker

Install = Callable[..., importlib.metadata.EntryPoint]

HOOKIMPL = "from redelivery.contract.hooks import hookimpl\n"
GOOD = """
from redelivery.contract.broker import BrokerPlugin, Capabilities
from redelivery.contract.hooks import hookimpl

class Opened(tuple):
    hosts = ()
    insecure = ()

def connect(url, options):
    return Opened((url, options))

@hookimpl
def redelivery_plugin():
    return BrokerPlugin(
        name={name!r}, schemes={schemes!r}, version="1.2.3", capabilities=Capabilities(), connect=connect,
        contract={contract!r},
    )
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a module and gives the entry point that names it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str | None = None, *, schemes: tuple[str, ...] = (), contract: int = CONTRACT_VERSION):
        module = f"{tmp_path.name}_{name}".replace("-", "_")
        text = GOOD.format(name=name, schemes=schemes or (name,), contract=contract) if source is None else source
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        return importlib.metadata.EntryPoint(name, module, GROUP)

    return write


def causes(registry: Registry) -> dict[str, str]:
    return {each.name: each.cause for each in registry.failed}


def test_a_plugin_is_found_by_each_of_its_schemes(install: Install) -> None:
    registry = discover([install("alpha", schemes=("alpha", "alphas"))])
    assert not registry.failed
    assert list(registry.plugins) == ["alpha"]
    assert registry.by_url("alpha://host/q") is registry.by_url("ALPHAS:q") is registry.plugins["alpha"]


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import a_client_library_that_is_not_there", "ModuleNotFoundError: No module named 'a_client_library"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemError('the native library does not fit')", "SystemError: the native library does not fit"),
        ("", "must implement redelivery_plugin()"),
        ("def redelivery_plugin(): return 1", "must implement redelivery_plugin()"),
        (
            f"{HOOKIMPL}@hookimpl\ndef redelivery_plugin(): return {{'name': 'broken'}}",
            "must implement redelivery_plugin() and return a BrokerPlugin",
        ),
        (
            f"{HOOKIMPL}@hookimpl\ndef redelivery_plugin(): raise KeyError('HOME')",
            "KeyError: 'HOME'",
        ),
        (
            f"{HOOKIMPL}@hookimpl\ndef redelivery_plugins(): return None",
            "redelivery_plugins",
        ),
    ],
    ids=["missing client library", "syntax", "raises", "no hook", "unmarked hook", "junk", "hook raises", "misspelt"],
)
def test_a_plugin_that_fails_is_named_with_its_cause_and_harms_no_other(
    install: Install, source: str, cause: str
) -> None:
    registry = discover([install("aaa"), install("broken", source), install("zzz")])
    assert list(registry.plugins) == ["aaa", "zzz"]
    assert list(causes(registry)) == ["broken"]
    assert cause in causes(registry)["broken"]


def test_a_plugin_whose_module_is_gone_is_named_with_its_cause() -> None:
    registry = discover([importlib.metadata.EntryPoint("gone", "a_module_that_was_removed", GROUP)])
    assert "a_module_that_was_removed" in causes(registry)["gone"]


@pytest.mark.parametrize("contract", [CONTRACT_VERSION - 1, CONTRACT_VERSION + 1])
def test_another_contract_version_is_reported_and_left_out(install: Install, contract: int) -> None:
    registry = discover([install("other", contract=contract), install("ours")])
    assert list(registry.schemes) == ["ours"]
    assert f"contract version {contract}" in causes(registry)["other"]
    assert "install matching versions" in causes(registry)["other"]


def test_a_scheme_claimed_twice_stays_with_the_first_and_names_both(install: Install) -> None:
    registry = discover([install("beta", schemes=("queue",)), install("alpha", schemes=("queue", "alpha"))])
    assert registry.by_url("queue:q").name == "alpha"
    assert causes(registry) == {
        "beta": "claims the scheme 'queue', which the plugin 'alpha' has; uninstall one of them"
    }


def test_a_plugin_refused_for_one_scheme_gets_none_of_its_others(install: Install) -> None:
    registry = discover([install("alpha", schemes=("queue",)), install("beta", schemes=("beta", "queue"))])
    assert set(registry.schemes) == {"queue"}


def test_a_plugin_name_taken_twice_is_reported(install: Install) -> None:
    first = install("alpha")
    again = importlib.metadata.EntryPoint("zeta", first.value, GROUP)
    registry = discover([first, again])
    assert causes(registry) == {"zeta": "the plugin name 'alpha' is already taken"}


def test_a_secret_in_a_cause_is_not_shown(install: Install) -> None:
    registry = discover([install("leaky", "raise RuntimeError('cannot reach x://me:hunter2@host, password=hunter2')")])
    assert "hunter2" not in causes(registry)["leaky"]


def test_an_unknown_scheme_names_what_is_installed_and_what_to_install(install: Install) -> None:
    registry = discover([install("alpha"), install("beta")])
    with pytest.raises(UnknownScheme, match=r"installed are: alpha, beta; install the plugin that opens it"):
        registry.by_url("carrier://coop/pigeon")


def test_a_misspelt_scheme_names_the_nearest(install: Install) -> None:
    with pytest.raises(UnknownScheme, match="did you mean 'alpha'"):
        discover([install("alpha")]).by_url("alhpa:q")


def test_the_scheme_of_a_plugin_that_failed_says_why(install: Install) -> None:
    registry = discover([install("alpha", "import a_client_library_that_is_not_there")])
    with pytest.raises(UnknownScheme, match="installed but failed to load: ModuleNotFoundError"):
        registry.by_url("alpha:q")


def test_an_unknown_scheme_shows_no_password(install: Install) -> None:
    with pytest.raises(UnknownScheme) as caught:
        discover([install("alpha")]).by_url("carrier://me:hunter2@coop")
    assert "hunter2" not in str(caught.value)


def test_what_is_no_url_is_said_to_be_none() -> None:
    with pytest.raises(InvalidURL, match="starts with a scheme"):
        discover([]).by_url("orders.db")


def plugin(options: Mapping[str, str], *, open_options: bool = False) -> BrokerPlugin:
    def nowhere(url: str, options: Mapping[str, str]) -> Broker:
        raise AssertionError(url, options)

    return BrokerPlugin(
        name="alpha",
        schemes=("alpha",),
        version="1",
        capabilities=Capabilities(),
        connect=nowhere,
        options=options,
        open_options=open_options,
    )


def test_client_options_lose_their_prefix_and_get_their_spelling_back() -> None:
    assert client_options(plugin({"busyTimeout": "ms"}), {"ALPHA.busytimeout": "5"}) == {"busyTimeout": "5"}


@pytest.mark.parametrize("name", ["alpha.busyTimeuot", "beta.busyTimeout", "busyTimeout", "alpha."])
def test_an_option_that_the_plugin_does_not_know_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownOption, match=r"alpha\.busyTimeout"):
        client_options(plugin({"busyTimeout": "ms"}), {name: "5"})


def test_a_plugin_with_open_options_takes_any_under_its_prefix_but_no_other() -> None:
    opened = plugin({}, open_options=True)
    assert client_options(opened, {"alpha.linger.ms": "20"}) == {"linger.ms": "20"}
    with pytest.raises(UnknownOption):
        client_options(opened, {"beta.linger.ms": "20"})


def test_connect_gives_the_plugin_its_own_options_with_secrets_resolved(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = GOOD.format(name="alpha", schemes=("alpha",), contract=CONTRACT_VERSION)
    found = discover([install("alpha", source.replace("connect=connect", "connect=connect, options={'token': ''}"))])
    monkeypatch.setattr(redelivery_plugins, "installed", lambda: found)
    monkeypatch.setenv("A_TOKEN", "hunter2")
    assert connect("alpha:q", {"alpha.token": "env:A_TOKEN"}) == ("alpha:q", {"token": "hunter2"})


def test_connect_refuses_a_secret_that_is_not_there_without_guessing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = GOOD.format(name="alpha", schemes=("alpha",), contract=CONTRACT_VERSION)
    found = discover([install("alpha", source.replace("connect=connect", "connect=connect, options={'token': ''}"))])
    monkeypatch.setattr(redelivery_plugins, "installed", lambda: found)
    monkeypatch.delenv("A_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match=r"env:A_TOKEN.*not set on this machine"):
        connect("alpha:q", {"alpha.token": "env:A_TOKEN"})


DIALECT = """
from redelivery.contract.hooks import HeaderDialect
from redelivery.contract.hooks import hookimpl

def read(found):
    return {{"reason": found.get("x-why", b"").decode(), "attempts": {attempts}, "nonsense": 1}}

@hookimpl
def redelivery_dialect():
    return HeaderDialect(name={name!r}, names=frozenset({{"x-why"}}), read=read)
"""


DECODER = """
from redelivery.contract.hooks import Decoder, hookimpl

@hookimpl
def redelivery_decoder():
    return [Decoder(name={name!r}, decode=lambda message: message.value.hex()), Decoder(name="other", decode=str)]
"""


def test_a_plugin_may_only_decode_bodies(install: Install) -> None:
    found = discover([install("theirs", DECODER.format(name="avro"))])
    assert not found.failed
    assert not found.plugins
    assert list(found.decoders) == ["avro", "other"]
    assert found.decoders["avro"].decode(Message(value=b"\x01")) == "01"


@pytest.mark.parametrize("name", ["hex", "other", "Avro", "", "<b>", "a" * 50])
def test_a_decoder_has_a_plain_name_of_its_own(install: Install, name: str) -> None:
    found = discover([install("theirs", DECODER.format(name=name))])
    assert not found.decoders
    assert [each.name for each in found.failed] == ["theirs"]


@pytest.fixture
def own_dialects() -> Iterator[None]:
    """The dialects that a test recognises are forgotten at its end."""
    yield
    dialects.recognise(redelivery_plugins.installed().dialects.values())


@pytest.mark.usefixtures("own_dialects")
def test_a_header_dialect_of_a_plugin_is_read_without_a_change_in_core(install: Install) -> None:
    found = discover([install("theirs", DIALECT.format(name="theirs", attempts="7"))])
    assert not found.failed
    assert not found.plugins
    dialects.recognise(found.dialects.values())
    letter = Message(value=b"v", headers=(("x-why", b"no such airport"), ("other", b"1")))
    assert dialects.read(letter) == ErrorContext(reason="no such airport", attempts=7)
    assert dialects.read(replace(letter, headers=())) is None
    assert dialects.strip(letter) == letter, "what others wrote is not ours to take away"


@pytest.mark.usefixtures("own_dialects")
def test_a_header_dialect_that_fails_or_is_wrong_hides_no_letter(install: Install, logged_defects: list[str]) -> None:
    found = discover([install("theirs", DIALECT.format(name="theirs", attempts="1 / 0"))])
    dialects.recognise(found.dialects.values())
    assert dialects.read(Message(value=b"v", headers=(("x-why", b"x"),))) is None
    assert ["'theirs' could not read a letter" in each for each in logged_defects] == [True]
    logged_defects.clear()


@pytest.mark.usefixtures("own_dialects")
def test_a_plugin_may_bring_several_header_dialects(install: Install) -> None:
    several = """
from redelivery.contract.hooks import HeaderDialect, hookimpl

@hookimpl
def redelivery_dialect():
    names = ("first", "second")
    return [HeaderDialect(name=n, names=frozenset({n}), read=said) for n in names]

def said(found):
    return {"reason": next(iter(found.values())).decode()}
"""
    found = discover([install("theirs", several), install("x", several.replace('"second"', '"first"'))])
    assert list(found.dialects) == ["first", "second"]
    assert causes(found).keys() == {"x"}
    dialects.recognise(found.dialects.values())
    assert dialects.read(Message(value=b"v", headers=(("second", b"why"),))) == ErrorContext(reason="why")


def test_two_header_dialects_of_one_name_are_refused(install: Install) -> None:
    text = DIALECT.format(name="theirs", attempts="1")
    found = discover([install("one", text), install("two", text), install("x", text.replace("'theirs'", "'connect'"))])
    assert list(found.dialects) == ["theirs"]
    assert causes(found).keys() == {"two", "x"}
    assert all("is already there" in each for each in causes(found).values())


def test_a_client_that_cannot_be_imported_when_a_url_is_opened_is_named(install: Install) -> None:
    """As where the client's own library is of another machine: a plugin may import its client only then."""
    late = GOOD.format(name="late", schemes=("late",), contract=CONTRACT_VERSION).replace(
        "    return Opened((url, options))", "    import a_client_library_that_is_not_there"
    )
    plugin = discover([install("late", late)]).plugins["late"]
    with pytest.raises(PluginError, match="late: its client cannot be imported: No module named 'a_client_library"):
        open_broker(plugin, "late:q", {})
