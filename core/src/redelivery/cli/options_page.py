"""`redelivery plugins --options`: all options, as the page `docs/options.md`.

It comes from what the code itself accepts: the table of spec fields, the data source's options, and each plugin's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from redelivery.contract.broker import BrokerPlugin
from redelivery.formats.specs.options import OPTIONS
from redelivery.registry import Registry
from redelivery.spark.options import READ, READ_STREAM, SINK_PREFIX, WRITE

_HEAD = """\
# All options

Made by `redelivery plugins --options`; a test compares it with the code. Names are known in any case. An option that is
not here is an error that names the nearest one.

In Spark they are `.option(name, value)`, or keywords of `deliver()`. A delivery spec in YAML or JSON has the first
table's names: those that Knative knows at the top, the others within an object `redelivery`.
"""


def as_markdown(found: Registry) -> str:
    """Return the page: a table for the delivery spec, for writes, for reads, and for each plugin."""
    return "\n".join(_lines(found)).rstrip()


def _lines(found: Registry) -> Iterator[str]:
    yield _HEAD
    yield from _table("The delivery spec", "How rows are retried, and where they go that fail for good.", OPTIONS)
    yield from _table("Writing from Spark", 'Of `df.write.format("redelivery")`, `writeStream` and `deliver()`.', WRITE)
    yield from _table("Reading dead letters in Spark", 'Of `spark.read.format("redelivery")`.', READ)
    about = 'Of `spark.readStream.format("redelivery")`, besides those of a read.'
    yield from _table("Streams of dead letters in Spark", about, READ_STREAM)
    for plugin in found.plugins.values():
        if plugin.options or plugin.open_options:
            yield from _table(f"Client options: {plugin.name}", _about(plugin), _prefixed(plugin))


def _about(plugin: BrokerPlugin) -> str:
    more = " The client's own settings are taken too, under the same prefix." if plugin.open_options else ""
    own = f"Of a sink: `{SINK_PREFIX}{plugin.name}.<name>`."
    return f"{own}{more} A secret is a reference, `env:NAME` or `file:PATH`."


def _prefixed(plugin: BrokerPlugin) -> Mapping[str, str]:
    return {f"{plugin.name}.{name}": text for name, text in plugin.options.items()}


def _table(title: str, about: str, options: Mapping[str, str]) -> Iterator[str]:
    yield from (f"## {title}", "", about, "", "| option | meaning |", "| --- | --- |")
    for name, text in options.items():
        cell = text.replace("|", "\\|")
        yield f"| `{name}` | {cell} |"
    yield ""
