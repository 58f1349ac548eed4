"""What columns mean is decided from the schema, before anything is sent."""

import pytest
from pyspark.sql import types as t

from redelivery.contract.broker import Capabilities, Support
from redelivery.errors import ConfigurationError, Unsupported
from redelivery.spark.columns import maybe_misspelt, resolve

Y = Support.NATIVE
ALL = Capabilities(
    send=Y, keys=Y, headers=Y, destinations=Y, null_value=Y, columns={"Lane": int}, destination_column="road"
)
FEW = Capabilities(send=Y, cloudevents_prefix=None)
TEXT = t.StringType()
HEADERS = t.ArrayType(t.StructType([t.StructField("key", TEXT), t.StructField("value", t.BinaryType())]))


def layout(capabilities=ALL, content_mode=None, require=(), **columns):
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    return resolve(schema, capabilities, broker="x", content_mode=content_mode, require_attributes=require)


def refused(error=ConfigurationError, **kwargs):
    with pytest.raises(error) as caught:
        layout(**kwargs)
    return str(caught.value)


def test_names_of_sparks_own_message_sink_are_the_message():
    found = layout(
        key=TEXT, value=TEXT, headers=HEADERS, destination=TEXT, timestamp=t.TimestampType(), lane=t.LongType()
    )
    assert found.mode == "raw"
    assert set(found.message) == {"key", "value", "headers", "destination", "timestamp"}
    assert found.extra == {"Lane": 5}
    assert found.row == ()


def test_the_brokers_own_word_for_a_destination_is_the_destination():
    assert layout(value=TEXT, ROAD=TEXT).message == {"value": 0, "destination": 1}
    assert "mean the same" in refused(value=TEXT, destination=TEXT, road=TEXT)
    assert "the column 'road' must be string" in refused(value=TEXT, road=t.LongType())


def test_without_a_value_the_brokers_own_words_are_data_of_the_row():
    assert layout(road=TEXT, lane=t.IntegerType(), amount=t.IntegerType()).row == (0, 1, 2)


def test_names_count_without_regard_to_case():
    assert layout(VALUE=TEXT, Key=TEXT).message == {"value": 0, "key": 1}


def test_without_a_value_the_other_columns_are_the_row():
    found = layout(key=TEXT, amount=t.IntegerType(), id=t.LongType(), type=TEXT)
    assert found.mode == "raw"
    assert [found.names[position] for position in found.row] == ["amount", "id", "type"]
    assert set(found.message) == {"key", "id"}


def test_type_and_source_make_events():
    columns = {"type": TEXT, "source": TEXT, "time": t.TimestampType(), "amount": t.IntegerType()}
    found = layout(**columns)
    assert found.mode == "binary"
    assert [found.names[position] for position in found.row] == ["amount"]
    assert layout(capabilities=FEW, **columns).mode == "structured"
    assert layout(content_mode="raw", **columns).row == (0, 1, 2, 3)


def test_a_duplicate_column_is_refused_whatever_its_case():
    assert "duplicate column 'Value'" in refused(value=TEXT, Value=TEXT)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": t.IntegerType()}, "'value' must be binary or string, not int; cast it"),
        ({"value": t.DecimalType(38, 18)}, ".withColumn('value', col('value').cast('string'))"),
        ({"value": t.StructType()}, ".withColumn('value', to_json(col('value')))"),
        ({"value": t.ArrayType(TEXT)}, "write it as JSON"),
        ({"value": TEXT, "headers": t.MapType(TEXT, TEXT)}, "transform(map_entries(headers)"),
        ({"value": TEXT, "headers": t.MapType(TEXT, t.LongType())}, "cast(cast(e.value as string) as binary)"),
        ({"value": TEXT, "headers": TEXT}, "make them: array(named_struct('key', 'name'"),
        (
            {"value": TEXT, "headers": t.ArrayType(t.StructType().add("name", TEXT).add("text", TEXT))},
            "col('headers').cast('array<struct<key:string,value:binary>>')",
        ),
        ({"value": TEXT, "key": t.DoubleType()}, "'key' must be binary or string"),
        ({"value": TEXT, "headers": t.MapType(TEXT, TEXT)}, "array<struct<key:string,value:binary>>"),
        ({"value": TEXT, "destination": t.LongType()}, "'destination' must be string"),
        ({"value": TEXT, "timestamp": TEXT}, "'timestamp' must be timestamp, not string"),
        ({"value": TEXT, "id": t.BooleanType()}, "'id' must be string"),
        ({"value": TEXT, "lane": TEXT}, "'lane' must be int"),
        ({"type": TEXT, "source": TEXT, "time": t.LongType()}, "'time' must be timestamp or string"),
        ({"type": TEXT, "source": TEXT, "extensions": TEXT}, "map<string,string>"),
        ({"a": t.DayTimeIntervalType()}, "cast it to string"),
        ({"a": t.MapType(t.IntegerType(), TEXT)}, "keys that are not text"),
        ({"a": t.MapType(t.IntegerType(), t.LongType())}, ".cast('map<string,bigint>')"),
        ({"a": t.MapType(t.DateType(), t.ArrayType(t.DayTimeIntervalType()))}, "cast it to string"),
    ],
)
def test_a_wrong_type_says_what_to_cast_to(columns, said):
    assert said in refused(**columns)


@pytest.mark.parametrize(
    ("name", "meant"), [("valeu", "value"), ("Value ", "value"), ("keys", "key"), ("header", "headers")]
)
def test_a_column_that_may_be_mistyped_is_warned_of_where_the_whole_row_is_sent(name, meant):
    found = maybe_misspelt(layout(**{name: TEXT}))
    assert repr(name) in found
    assert repr(meant) in found


@pytest.mark.parametrize("names", [["valid", "amount", "kind", "🔑"], ["key", "keys"]])
def test_other_names_are_not_warned_of(names):
    assert maybe_misspelt(layout(**dict.fromkeys(names, TEXT))) is None


@pytest.mark.parametrize("name", [each for each in ("GeographyType", "GeometryType") if hasattr(t, each)])
def test_a_shape_cannot_be_cast_to_text_and_the_advice_does_not_say_so(name):
    said = refused(a=getattr(t, name)("ANY"))
    assert "st_asbinary" in said
    assert "cast" not in said


def test_a_column_that_would_be_lost_is_refused():
    assert "did you mean 'headers'" in refused(value=TEXT, header=HEADERS)
    assert "raw messages do not carry" in refused(value=TEXT, subject=TEXT)
    assert "drop it before writing" in refused(value=TEXT, _error=TEXT)


@pytest.mark.parametrize("name", ["key", "destination", "headers"])
def test_what_the_broker_cannot_carry_is_refused(name):
    kind = HEADERS if name == "headers" else TEXT
    assert f"the column '{name}' would be lost" in refused(Unsupported, capabilities=FEW, **{"value": TEXT, name: kind})


def test_what_an_event_needs_is_asked_for():
    assert "needs the columns source" in refused(content_mode="structured", value=TEXT, type=TEXT)
    assert "needs the columns subject" in refused(require=("subject",), value=TEXT, type=TEXT, source=TEXT)
    assert "raw messages" in refused(require=("subject",), value=TEXT)
    assert "no binary mode" in refused(
        Unsupported, capabilities=FEW, content_mode="binary", value=TEXT, type=TEXT, source=TEXT
    )


def test_nothing_to_send_is_refused():
    assert "nothing to send" in refused(key=TEXT)


def test_a_required_id_wants_its_column():
    events = {"type": TEXT, "source": TEXT, "value": TEXT}
    assert "needs the columns id" in refused(require=("id",), **events)
    assert layout(require=("id",), id=TEXT, **events).mode == "binary"
