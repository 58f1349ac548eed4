"""Finding plugins: the hook, discovery by entry point, and `connect(url)`.

A plugin that fails to load is reported by name with its cause, and does not affect the others.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pluggy

from redelivery.base.rendering import harmless
from redelivery.base.restrictions import restrictions
from redelivery.base.secrets import guard_loggers, redact, redact_url, remember_literals, resolve_secrets
from redelivery.base.urls import nearest, scheme_of, unknown
from redelivery.contract.broker import CONTRACT_VERSION, FEATURES, Broker, BrokerPlugin, Support
from redelivery.contract.capabilities import DIALECTS
from redelivery.contract.hooks import GROUP, Decoder, HeaderDialect, Hooks
from redelivery.errors import ConfigurationError, PluginError, UnknownScheme

#: The option that every plugin has: refuse insecure connections.
STRICT = "redelivery.strict"
#: Characters of an error about options; a list of all options of a plugin is shorter.
_LINE = 1600

log = logging.getLogger("redelivery.plugins")


@dataclass(frozen=True, slots=True)
class FailedPlugin:
    """A plugin that is installed but cannot be used, and why."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class Registry:
    """The installed plugins by name and by scheme, those that failed; header dialects and decoders by name."""

    plugins: Mapping[str, BrokerPlugin]
    schemes: Mapping[str, BrokerPlugin]
    failed: tuple[FailedPlugin, ...]
    dialects: Mapping[str, HeaderDialect] = field(default_factory=dict)
    decoders: Mapping[str, Decoder] = field(default_factory=dict)

    def by_url(self, url: str) -> BrokerPlugin:
        """Return the plugin that opens a URL.

        Raises:
            InvalidURL: it has no scheme. UnknownScheme: no plugin opens it; names the known schemes and what to
                install.
        """
        scheme = scheme_of(url)
        if scheme in self.schemes:
            return self.schemes[scheme]
        near = nearest(scheme, self.schemes)
        broken = next((f for f in self.failed if f.name == scheme), None)
        if broken is not None:
            hint = f"its plugin is installed but failed to load: {broken.cause}"
        elif near:
            hint = f"did you mean {near!r}?"
        else:
            ours = scheme in _extras()
            hint = f"install ours: pip install 'redelivery[{scheme}]'" if ours else "install the plugin that opens it"
        there = ", ".join(sorted(self.schemes)) or "none"
        raise UnknownScheme(f"no plugin opens {scheme!r} URLs ({redact_url(url)}); installed are: {there}; {hint}")


def discover(entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Registry:
    """Load every installed plugin; never raises for a plugin that fails.

    Args:
        entry_points: instead of the installed ones, for tests.
    """
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=GROUP)
    plugins: dict[str, BrokerPlugin] = {}
    schemes: dict[str, BrokerPlugin] = {}
    failed: list[FailedPlugin] = []
    read: dict[str, HeaderDialect] = {}
    decoders: dict[str, Decoder] = {}
    for entry_point in sorted(entry_points, key=lambda each: each.name):
        try:
            plugin, own, shown = _load(entry_point)
            if plugin is not None:
                _check(plugin, plugins, schemes)
            own_dialects: dict[str, HeaderDialect] = {}
            for dialect in own:
                _check_dialect(dialect, {**read, **own_dialects})
                own_dialects[dialect.name] = dialect
            own_decoders: dict[str, Decoder] = {}
            for decoder in shown:
                _check_decoder(decoder, {**decoders, **own_decoders})
                own_decoders[decoder.name] = decoder
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises at import is reported, by name
            cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            failed.append(FailedPlugin(entry_point.name, redact(cause)))
            continue
        if plugin is not None:
            plugins[plugin.name] = plugin
            schemes.update(dict.fromkeys(plugin.schemes, plugin))
        read.update(own_dialects)
        decoders.update(own_decoders)
    return Registry(plugins, schemes, tuple(failed), read, decoders)


@cache
def installed() -> Registry:
    """Return the installed plugins, discovered once per process. Letters are then read by their dialects too."""
    from redelivery.formats import dialects  # noqa: PLC0415 - to list plugins takes none of it

    found = discover()
    dialects.recognise(found.dialects.values())
    return found


def connect(url: str, options: Mapping[str, str] | None = None, *, warn: bool = True) -> Broker:
    """Open the destination that a URL names, on this machine. No I/O yet: that begins with a role.

    Args:
        url: `<scheme>:...`; the plugin's README says what follows.
        options: client options with their `<plugin name>.` prefix; values may be secret references. With
            `redelivery.strict` set to true, an insecure connection is refused; otherwise it causes a warning.
        warn: False: it causes none, as another process of the same job has given it.

    Raises:
        InvalidURL, UnknownScheme, UnknownOption, ConfigurationError: the last also where this deployment does not allow
            the plugin, a secret reference or a host (`redelivery.base.restrictions`).
    """
    return open_broker(installed().by_url(url), url, options, warn=warn)


def open_broker(
    plugin: BrokerPlugin, url: str, options: Mapping[str, str] | None = None, *, warn: bool = True
) -> Broker:
    """Open a URL by this plugin. As `connect`; for a plugin that is not installed as a distribution.

    An error is one short line without secrets, whatever the plugin raises. The frames that it passed are cleared,
    because error-reporting tools write their variables, which hold resolved options.
    """
    guard_loggers(GROUP, str(getattr(plugin.connect, "__module__", GROUP)).partition(".")[0])
    try:
        return _opened(plugin, url, options, warn=warn)
    except Exception as error:
        if isinstance(error, ConfigurationError):
            error.args = (_line(str(error)), *error.args[1:])
        each: BaseException | None = error
        seen: set[int] = set()
        while each is not None and id(each) not in seen:  # a plugin's error may have itself for its cause
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        raise


def is_at(url: str, broker: Broker, options: Mapping[str, str]) -> bool:
    """Return whether a URL that anyone may have written means the destination of a broker.

    Nothing is logged or remembered of it, and whatever is wrong with it, it means another place.
    """
    try:
        plugin = installed().by_url(url)
        if plugin.name != broker.name:
            return False
        there = plugin.connect(url, resolve_secrets(client_options(plugin, _divided(options)[1])))
        return there.is_at(broker)
    except Exception:  # noqa: BLE001 - see above
        return False


def _line(text: str) -> str:
    """Return a plugin's text as one line without secrets; of a long text its beginning and its end."""
    text = harmless(redact(text))
    if len(text) <= _LINE:
        return text
    return f"{text[: _LINE * 3 // 4]} ... {text[-_LINE // 4 :]}"


def _opened(plugin: BrokerPlugin, url: str, options: Mapping[str, str] | None, *, warn: bool) -> Broker:
    allowed = restrictions()
    allowed.check_plugin(plugin.name)
    remember_literals(url)
    common, own = _divided(options or {})
    for name, value in own.items():
        if "\0" in value or not _is_text(value):
            raise ConfigurationError(f"{name}: it holds a NUL or half a character, which no client takes; correct it")
    strict = _is_strict(common)
    settings = resolve_secrets(client_options(plugin, own))
    try:
        broker = plugin.connect(url, settings)
    except ImportError as error:  # many plugins import their client only here
        raise PluginError(f"{plugin.name}: its client cannot be imported: {error}; install it again") from error
    allowed.check_hosts(broker.hosts, plugin.name)
    for each in broker.insecure:
        if strict or allowed.strict:
            raise ConfigurationError(f"{redact_url(url)}: {each}; {STRICT} refuses that")
        if warn:
            _warn_once(f"{redact_url(url)}: {each}; {STRICT}=true would refuse that")
    return broker


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def common_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the client options that apply to every plugin. Raises UnknownOption."""
    return _divided(options)[0]


def is_client_option(name: str) -> bool:
    """Whether an option belongs to a plugin, or to all of them: `<plugin>.<name>`, `redelivery.<name>`."""
    prefix, dot, _ = name.lower().partition(".")
    return bool(dot) and (prefix == GROUP or prefix in installed().plugins)


def _divided(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide client options into those that apply to every plugin, and the others."""
    common = {name.lower(): value for name, value in options.items() if name.lower().startswith(f"{GROUP}.")}
    for name in common:
        if name != STRICT:
            raise unknown("option", name, [STRICT])
    return common, {name: value for name, value in options.items() if name.lower() not in common}


def _is_strict(common: Mapping[str, str]) -> bool:
    text = common.get(STRICT, "false").lower()
    if text not in {"true", "false"}:
        raise ConfigurationError(f"{STRICT}: true or false, not {text!r}")
    return text == "true"


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def subscription_url(url: str, name: str, options: Mapping[str, str] | None = None) -> str:
    """Return the URL of a named subscription to a destination: its messages, objects and dead letters belong to it.

    Args:
        url: a destination with several readers (an exchange, a topic).
        name: the subscription's; it has its own copy of each message.
        options: the destination's client options, with their prefix.

    Raises:
        Unsupported: the destination has no separate copy for a name; the text says why.
        InvalidURL, UnknownScheme, UnknownOption, ConfigurationError
    """
    with connect(url, options) as broker:
        return broker.subscription(name)


def own_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return, of several plugins' client options, those of the plugin that opens a URL; all with their prefix.

    Raises:
        InvalidURL, UnknownScheme, UnknownOption: the prefix is not a plugin's.
    """
    if not options:
        return {}
    found = installed()
    mine = found.by_url(url).name
    own, others = _divided(options)
    for name, value in others.items():
        prefix = name.partition(".")[0].lower()
        if prefix not in found.plugins:
            raise unknown("option", name, [f"{each}.{name.partition('.')[2]}" for each in found.plugins])
        if prefix == mine:
            own[name] = value
    return own


def client_options(plugin: BrokerPlugin, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of one plugin, without their prefix; case is restored to the plugin's own spelling.

    Raises:
        UnknownOption: the plugin does not know an option, or it has another prefix.
    """
    spelling = {name.lower(): name for name in plugin.options}
    own: dict[str, str] = {}
    for name, value in options.items():
        prefix, _, rest = name.partition(".")
        if prefix.lower() != plugin.name or not (rest.lower() in spelling or (plugin.open_options and rest)):
            raise unknown("option", name, [f"{plugin.name}.{each}" for each in plugin.options])
        own[spelling.get(rest.lower(), rest)] = value
    return own


@cache
def _extras() -> Sequence[str]:
    """Return the plugins that the distribution `redelivery` itself offers; error texts suggest only these."""
    try:
        return importlib.metadata.metadata("redelivery").get_all("Provides-Extra") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def _load(
    entry_point: importlib.metadata.EntryPoint,
) -> tuple[BrokerPlugin | None, Sequence[HeaderDialect], Sequence[Decoder]]:
    """Import one plugin's module and call its hooks, isolated from all others."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(entry_point.load(), entry_point.name)
    manager.check_pending()
    brokers = manager.hook.redelivery_plugin()
    dialects, decoders = _flat(manager.hook.redelivery_dialect()), _flat(manager.hook.redelivery_decoder())
    for found, hook, kind in (
        (brokers, "redelivery_plugin", BrokerPlugin),
        (dialects, "redelivery_dialect", HeaderDialect),
        (decoders, "redelivery_decoder", Decoder),
    ):
        if not all(isinstance(each, kind) for each in found) or not (brokers or dialects or decoders):
            raise PluginError(f"{entry_point.value} must implement {hook}() and return a {kind.__name__}")
    return next(iter(brokers), None), dialects, decoders


def _flat(given: Iterable[Any]) -> list[Any]:
    """Return what hooks returned, one or several each."""
    return [each for some in given for each in (some if isinstance(some, Sequence) else [some])]


def _check_decoder(decoder: Decoder, known: Mapping[str, Decoder]) -> None:
    if decoder.name in {*known, "json", "text", "hex"} or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,39}", decoder.name):
        raise PluginError(f"the decoder {decoder.name!r} is already there, or is no short lower-case name")


def _check_dialect(dialect: HeaderDialect, known: Mapping[str, HeaderDialect]) -> None:
    if dialect.name in known or dialect.name in DIALECTS:
        raise PluginError(f"the header dialect {dialect.name!r} is already there")


def _check(plugin: BrokerPlugin, plugins: Mapping[str, BrokerPlugin], schemes: Mapping[str, BrokerPlugin]) -> None:
    if plugin.contract != CONTRACT_VERSION:
        msg = (
            f"written for contract version {plugin.contract}, this redelivery-core has {CONTRACT_VERSION}; "
            "install matching versions of both"
        )
        raise PluginError(msg)
    for feature in FEATURES:
        if not isinstance(getattr(plugin.capabilities, feature), Support):
            raise PluginError(f"its capability {feature!r} is not a Support (native, emulated, lower-bound or none)")
    dialect = plugin.capabilities.context_dialect
    if dialect not in DIALECTS:
        raise PluginError(str(unknown("context_dialect", dialect, DIALECTS)))
    if plugin.name in plugins:
        msg = f"the plugin name {plugin.name!r} is already taken"
        raise PluginError(msg)
    for scheme in plugin.schemes:
        if scheme in schemes:
            msg = f"claims the scheme {scheme!r}, which the plugin {schemes[scheme].name!r} has; uninstall one of them"
            raise PluginError(msg)
