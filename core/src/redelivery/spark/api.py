"""The functions that a job calls: `register`, `deliver`, `events`, `undelivered`, `rows`, `redrive`.

They work on classic Spark and on Spark Connect. This module only combines the others.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from redelivery import registry
from redelivery.base.urls import has_scheme, unknown
from redelivery.contract.spec import NATIVE, DeliverySpec
from redelivery.errors import ConfigurationError, Permanent, RedeliveryError
from redelivery.formats.events import UNDELIVERABLE, validate
from redelivery.sending.connector import prefixed, sink_url
from redelivery.sending.report import DeliveryReport
from redelivery.spark import columns, jsonform
from redelivery.spark import job as jobs
from redelivery.spark.columns import READ_ONLY
from redelivery.spark.lineage import SETTINGS
from redelivery.spark.options import EXTENSIONS, READ, SINK_PREFIX, read_write_options
from redelivery.spark.redelivered import Redelivered
from redelivery.spark.redriving import redrive
from redelivery.telemetry.owned import here

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT: Final = "redelivery"
#: Options of a read that apply to any place.
_READ: Final = {name.lower() for name in READ} - {"url", "deadletters", "deadlettersink"}
#: Name of the column that holds the rest of the row, encoded by Spark itself.
_VALUE: Final = "value"


def register(spark: SparkSession) -> None:
    """Make `format("redelivery")` known to a session.

    Spark finds it by itself where `redelivery` is installed, unless another package named `pyspark_*` fails to import.

    Raises:
        ConfigurationError: Spark 4.0 has another package's format of this name, which it does not let replace. Later
            versions replace it.
    """
    from redelivery.spark.writer import RedeliveryDataSource  # noqa: PLC0415 - needs no session to be imported

    try:
        spark.dataSource.register(RedeliveryDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        name = RedeliveryDataSource.name()
        if not _is_ours(spark, name):
            raise ConfigurationError(
                f"format({name!r}) is another package's here, and Spark {spark.version} lets no one replace it: "
                "remove that package (look for the name pyspark_*), or write with deliver(), which needs no format"
            ) from None


def _is_ours(spark: SparkSession, name: str) -> bool:
    """Return whether a format is ours: then a read without options fails with an error of ours."""
    try:
        _ = spark.read.format(name).load().schema
    except PySparkException as error:
        return ConfigurationError.__module__ in str(error)
    return False


def deliver(df: DataFrame, url: str, spec: DeliverySpec | None = None, **options: Any) -> DeliveryReport:
    """Deliver every row, and return the account. Reading the report never sends again.

    Args:
        df: columns as for `df.write.format("redelivery")`; without a `value` column Spark encodes the row as JSON.
        url: where rows go.
        spec: how rows are delivered; in place of spec options.
        options: as for `df.write`, by keyword, or `**{"errors.tolerance": "all"}`.

    Returns:
        The account: `rows == delivered + dead_lettered + skipped`.

    Raises:
        ConfigurationError, Unsupported: nothing was sent.
        ToleranceExceeded: too many records of the job failed.
        pyspark.errors.PythonException: a task failed; its text holds the error of the delivery.
    """
    settings = read_write_options(_texts({"url": url, **options}), spec=spec)
    settings = replace(settings, traceparent=settings.traceparent or here())
    spark = df.sparkSession
    jobs.refuse_one_host(url, _conf(spark, "spark.master"), shared_mount=settings.shared_mount)
    job = jobs.Job.plan(settings, df.schema)
    if not is_remote():  # on Connect this is the client's machine, which may not reach what the driver reaches
        jobs.preflight(job)
    letters = () if job.position is None else (columns.POSITION,)
    df, layout = columns.encode_rows(df, job.layout, *letters)
    if letters:  # it comes last now
        last = len(df.columns) - 1
        job = replace(job, position=last, rows=tuple(range(last)))
    job = replace(job, layout=layout)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs on the workers

        try:
            report, redelivered = jobs.deliver_partition(job, batches)
        except RedeliveryError as error:
            raise jobs.plain(error) from None
        found = [
            pa.array([json.dumps(report.to_dict())]),
            pa.array([redelivered.chunks], pa.list_(pa.binary())),
            pa.array([redelivered.kept], pa.list_(pa.string())),
        ]
        yield pa.record_batch(found, names=["report", "chunks", "kept"])

    done = df.mapInArrow(task, "report string, chunks array<binary>, kept array<string>").collect()
    return jobs.finish(
        job,
        [DeliveryReport.from_dict(json.loads(row[0])) for row in done],
        redelivered=[Redelivered(chunks=[bytes(each) for each in row[1]], kept=row[2]) for row in done],
        speculation=_conf(spark, "spark.speculation") == "true",
        spark={name: text for name in SETTINGS if (text := _conf(spark, name)) is not None},
    )


def events(
    df: DataFrame,
    *,
    type: Column | str,  # noqa: A002 - the attribute's own name
    source: Column | str,
    subject: Column | str | None = None,
    time: Column | str | None = None,
    id: Column | str | None = None,  # noqa: A002 - the attribute's own name
    dataschema: Column | str | None = None,
    extensions: Column | None = None,
    key: Column | str | None = None,
    data: Sequence[str] | None = None,
) -> DataFrame:
    """Return a DataFrame as CloudEvents, its data in JSON. Spark itself builds it on the JVM.

    Args:
        df: any DataFrame.
        type: the text for all rows, or a column: `col("kind")`.
        source: the same.
        subject: a column, or its name; null where an event has none.
        time: the same; a timestamp, or RFC 3339 text.
        id: the same; derived where null.
        dataschema: the same.
        key: the same; it orders and places the message.
        extensions: a column of type map<string,string>.
        data: names of the columns that are the data; None: all.

    Returns:
        The columns that a write takes: `value`, `datacontenttype`, `type`, `source`, and the optional ones given.

    Raises:
        ConfigurationError: a column does not exist, or has no JSON form; a `type` or `source` that no event can have.
    """
    _check_literals(type, source)
    names = list(df.columns if data is None else data)
    by_name = {each.name: each for each in df.schema.fields}
    for name in [*names, *(each for each in (subject, time, id, dataschema, key) if isinstance(each, str))]:
        if name not in by_name:
            raise ConfigurationError(str(unknown("column", name, by_name)))
    for name in names:
        jsonform.check(name, by_name[name].dataType)
    columns: dict[str, Column | None] = {
        "type": f.lit(type) if isinstance(type, str) else type,
        "source": f.lit(source) if isinstance(source, str) else source,
        "subject": _column(subject),
        "time": _column(time),
        "id": _column(id),
        "dataschema": _column(dataschema),
        "datacontenttype": f.lit("application/json"),
        EXTENSIONS: extensions,
        "key": _column(key),
        _VALUE: jsonform.expression(names, df.schema),
    }
    return df.select(*(column.alias(name) for name, column in columns.items() if column is not None))


def undelivered(
    spark: SparkSession,
    report: DeliveryReport,
    spec: DeliverySpec | None = None,
    *,
    url: str | None = None,
    **options: Any,
) -> DataFrame:
    """Return the dead-lettered rows of one run, read from the sink. Reading them twice never sends twice.

    Args:
        spark: the session.
        report: of the run.
        spec: the run's spec; its first sink is read.
        url: the sink, in place of `spec`: a URL that letters were sent to.
        options: client options, as for reading.

    Raises:
        ConfigurationError: no sink was named, so no letter was kept.
    """
    sink = url
    if sink is None and spec is not None and spec.dead_letter_sink:
        sink, client = _first_sink(spec, report.primary, _texts(options))
        options = {**client, **options}
    if not sink:
        raise ConfigurationError("this delivery had no deadLetterSink, so what was not delivered is not kept anywhere")
    read = spark.read.format(FORMAT).option("deadLetters", "true").option("run", report.run)
    for name, value in _texts(options).items():
        read = read.option(name, value)
    read = read.option("url", report.primary) if sink == NATIVE else read.option("deadLetterSink", sink)
    # A sink that has received nothing may not exist, and reading a place that does not exist is an error.
    return read.load() if report.dead_lettered else read.load().limit(0)


def _first_sink(spec: DeliverySpec, primary: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the URL of the first sink of a job's destination (or NATIVE), and its client options for a read."""
    first, found = spec.dead_letter_sink[0], registry.installed()
    sink, home = first.uri, found.by_url(primary)
    if first.ref is not None or not (sink == NATIVE or has_scheme(sink)):
        client = {n: value for n, value in options.items() if n.partition(".")[0].lower() == home.name}
        with registry.connect(primary, client) as broker:
            sink = sink_url(first, broker)
    plugin = home if sink == NATIVE else found.by_url(sink)
    return sink, {f"{SINK_PREFIX}{name}": value for name, value in prefixed(first.options, plugin.name).items()}


def dead_letters(spark: SparkSession, *urls: str, **options: Any) -> DataFrame:
    """Return the dead letters of several destinations, of any brokers, as one DataFrame with the same columns.

    A column that only some brokers have is null for the others. `_error.destination` names the place of a letter.

    Args:
        spark: the session.
        urls: destinations, whose native dead letter queues are read.
        options: as for reading; client options of any of the plugins, by keyword, or `**{"<plugin>.<name>": ...}`.

    Raises:
        ConfigurationError: no URL is given.
    """
    if not urls:
        raise ConfigurationError("dead_letters: give the URL of one destination, or of several")
    given = _texts(options)
    ours = {name: text for name, text in given.items() if name.lower() in _READ}
    client = {name: text for name, text in given.items() if name not in ours}
    found = []
    for url in urls:
        own = registry.own_options(url, client)
        found.append(spark.read.format(FORMAT).options(url=url, deadLetters="true", **ours, **own).load())
    return functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)


def rows(letters: DataFrame, schema: StructType | str) -> DataFrame:
    """Return the rows that letters of type `redelivery.undeliverable` stand for, to be repaired and written.

    Such a letter is a row that could not become a message; its `value` is that row as JSON. Other letters are left out.

    Args:
        letters: as `spark.read.format("redelivery").option("deadLetters", True)` returns them.
        schema: of the rows that were written: `df.schema`, or text such as "id string, amount int".

    Returns:
        The columns of the schema, and `_error` and `_position` of the letter, which are to be dropped before writing. A
        column that the row does not have is null. Leave `destination`, and other routing columns, out of the schema
        unless you trust everyone who may write letters there: anyone may have written the row. In a letter with the
        native code `not-utf8`, text is base64.

    Raises:
        ConfigurationError: these are not letters, or they have no types: they were not read as dead letters.
        pyspark.errors.SparkRuntimeException: by the action that follows: a value is not such a row, whether
            `spark.sql.ansi.enabled` or not. The error names the letter and, where it can, the column.
    """
    needed = ("type", _VALUE, *READ_ONLY)
    if not {*needed} <= {*letters.columns}:
        raise ConfigurationError(
            f"rows: these are not dead letters as they are read: the columns {', '.join(needed)} are needed"
        )
    if not isinstance(schema, str | StructType):
        raise ConfigurationError(
            f"rows: the schema is a StructType or text, as in 'id string, amount int', not {schema!r}"
        )
    text = f.col(_VALUE).cast("string")
    kind = letters.select(f.from_json(text, schema).alias(_VALUE)).schema[_VALUE].dataType
    if not isinstance(kind, StructType):
        raise ConfigurationError(f"rows: the schema is that of a row, as in 'id string, amount int', not {schema!r}")
    letter = f.coalesce(f.col("_error.message_id"), f.col(columns.POSITION))
    where = f.concat(f.lit("redelivery: rows: the letter "), letter, f.lit(": "))
    found = letters.where(f.col("type") == UNDELIVERABLE)
    read = found.select(*jsonform.decoded(text, kind, where), *READ_ONLY)
    return read.select(f.expr(jsonform.decoded_row(kind)).alias(_VALUE), *READ_ONLY).select(f"{_VALUE}.*", *READ_ONLY)


def _check_literals(kind: Column | str, source: Column | str) -> None:
    """Report errors that would refuse every row. Raises ConfigurationError."""
    given = {name: value for name, value in (("type", kind), ("source", source)) if isinstance(value, str)}
    try:
        validate({"id": "1", "type": "t", "source": "/s", **given})
    except Permanent as error:
        raise ConfigurationError(f"events: {error}") from error


def _column(column: Column | str | None) -> Column | None:
    return f.col(jsonform.quoted(column)) if isinstance(column, str) else column


def _conf(spark: SparkSession, name: str) -> str | None:
    try:
        value: str | None = spark.conf.get(name, None)
    except Exception:  # noqa: BLE001 - Connect keeps some settings to itself; the tasks check again
        return None
    return value


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as text; an option that is None is not set."""
    texts = {name: str(value) for name, value in options.items() if value is not None}
    return {name: text.lower() if isinstance(options[name], bool) else text for name, text in texts.items()}


__all__ = ["dead_letters", "deliver", "events", "redrive", "register", "rows", "undelivered"]
