"""Options are checked before anything is sent, and say what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import ConfigurationError, InvalidSpec, InvalidURL, UnknownOption, UnknownScheme
from redelivery.sending import Bounds
from redelivery.spark.options import WRITE, read_read_options, read_write_options
from redelivery.spark.writer import RedeliveryDataSource

URL = "shelf:///anywhere?queue=orders"

pytestmark = pytest.mark.usefixtures("shelf_path")


def refused(error, **options):
    with pytest.raises(error) as caught:
        read_write_options({"url": URL, **options})
    return str(caught.value)


def test_every_option_is_known_in_lower_case_as_spark_gives_it():
    settings = read_write_options(
        {
            "path": URL,
            "contentmode": "raw",
            "requireattributes": "Subject, time",
            "writeid": "nightly",
            "maxinflightbytes": "1000",
            "maxwaitingrecords": "7",
            "maxinflightrecords": "50",
            "sharedmount": "true",
            "preflight": "false",
            "retry": "3",
            "backoffdelay": "PT1S",
            "deadlettersink": "native",
            "shelf.maxweight": "5",
            "sink.shelf.maxweight": "6",
        }
    )
    assert settings.url == URL
    assert settings.require_attributes == ("subject", "time")
    assert not settings.preflight
    assert settings.write_id == "nightly"
    assert settings.bounds == Bounds(in_flight_records=50, in_flight_bytes=1000, waiting_records=7)
    assert settings.shared_mount
    assert settings.spec.retry == 3
    assert settings.client == {"shelf.maxWeight": "5"}
    assert settings.spec.dead_letter_sink[0].options == {"shelf.maxWeight": "6"}


def test_what_letters_are_written_as_is_said_by_options_of_a_job():
    sink = '{"uri": "native", "type": "order.lost", "options": {"maxWeight": "5"}}'
    options = {"deadlettertype": "order.dead", "deadletterdialects": "connect, knative", "deadlettersink": sink}
    spec = read_write_options({"url": URL, **options}).spec
    assert (spec.dead_letter_type, spec.dead_letter_dialects) == ("order.dead", ("connect", "knative"))
    assert [each.type for each in spec.dead_letter_sink] == ["order.lost"]


def test_what_is_common_to_all_plugins_is_an_option_of_both_directions():
    assert read_write_options({"url": URL, "redelivery.Strict": "TRUE"}).client == {"redelivery.strict": "true"}
    read = {"url": URL, "deadLetters": "true", "redelivery.strict": "true"}
    assert read_read_options(read).client == {"redelivery.strict": "true"}
    assert "redelivery.strict must be true or false" in refused(ConfigurationError, **{"redelivery.strict": "yes"})
    assert "did you mean 'redelivery.strict'" in refused(UnknownOption, **{"redelivery.strikt": "true"})


def test_a_key_of_letters_is_a_reference_in_both_directions():
    assert read_write_options({"url": URL, "letterkey": "file:/run/key"}).spec.letter_key == "file:/run/key"
    read = {"url": URL, "deadLetters": "true"}
    assert read_read_options({**read, "letterKey": "env:NEW, env:OLD"}).keys == ("env:NEW", "env:OLD")
    for call in (
        lambda: read_read_options({**read, "letterKey": "canary"}),
        lambda: refused(InvalidSpec, letterKey="canary"),
    ):
        try:
            text = call()
        except ConfigurationError as error:
            text = str(error)
        assert "letterKey: " in str(text)
        assert "canary" not in str(text)


def test_allowed_targets_are_a_comma_list():
    read = {"url": URL, "deadLetters": "true"}
    assert read_read_options({**read, "allowtargets": "orders-*, exchange=a,"}).allow_targets == (
        "orders-*",
        "exchange=a",
    )
    assert read_read_options(read).allow_targets == ()


def test_an_unknown_option_names_the_nearest_one():
    assert "did you mean 'retry'" in refused(UnknownOption, retri="3")
    assert "did you mean 'deadLetterSink'" in refused(UnknownOption, deadletersink="native")
    assert "did you mean 'shelf.maxWeight'" in refused(UnknownOption, **{"shelf.maxWait": "3"})


@given(st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=12))
def test_no_option_is_ignored_silently(name):
    if name in {each.lower() for each in WRITE} | {"path"} or len(name) < 6:
        return
    try:
        read_write_options({"url": URL, name: "1"})
    except ConfigurationError:
        return
    from redelivery.formats.specs import options  # noqa: PLC0415

    assert options.is_spec_option(name)


def test_no_url_shows_what_one_looks_like():
    with pytest.raises(ConfigurationError, match=r'option\("url"'):
        read_write_options({})


def test_a_malformed_url_says_so():
    assert "not a destination URL" in refused(InvalidURL, url="orders")
    assert "not a valid URL" in refused(InvalidURL, url="shelf://[half/orders")
    assert "needs a folder" in refused(InvalidURL, url="shelf:")


def test_a_url_may_name_several_hosts():
    url = "shelf://one:9092,two:9092/orders"
    assert read_write_options({"url": url}).url == url


def test_an_unknown_scheme_names_what_there_is_and_what_to_install():
    text = refused(UnknownScheme, url="pigeon://loft")
    assert "shelf" in text
    assert "install the plugin that opens it" in text


def test_url_and_path_together_are_refused():
    assert "given twice" in refused(ConfigurationError, path=URL)


@pytest.mark.parametrize("name", ["url", "deadLetterSink"])
def test_a_password_in_a_url_is_refused_and_not_shown(name):
    text = refused(InvalidURL, **{name: "shelf://me:hunter2@host/x"})
    assert "env:NAME" in text
    assert "hunter2" not in text


def test_a_literal_secret_in_a_client_option_is_refused_and_not_shown():
    text = refused(ConfigurationError, **{"shelf.password": "hunter2"})
    assert "'shelf.password'" in text
    assert "env:NAME" in text
    assert "hunter2" not in text
    settings = read_write_options({"url": URL, "shelf.password": "env:LOCK"})
    assert settings.client == {"shelf.password": "env:LOCK"}  # resolved on the workers, not here


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("backoffDelay", "5s", "ISO-8601"),
        ("retry", "-2", "retry"),
        ("maxInFlightBytes", "0", "above 0"),
        ("maxInFlightRecords", "none", "above 0"),
        ("maxWaitingRecords", "many", "above 0"),
        ("sharedMount", "perhaps", "true or false"),
        ("contentMode", "binery", "did you mean 'binary'"),
        ("requireAttributes", "subjekt", "did you mean 'subject'"),
        ("writeId", "two words", "without spaces"),
        ("reportPath", "/no/such/folder/report.json", "existing folder"),
    ],
)
def test_a_malformed_value_says_what_is_right(option, value, said):
    assert said in refused(ConfigurationError, **{option: value})


def test_errors_spell_an_option_as_the_documentation_does():
    assert "backoffDelay" in refused(ConfigurationError, backoffdelay="5s")
    assert "errors.retry.timeout" in refused(ConfigurationError, **{"ERRORS.RETRY.TIMEOUT": "soon"})
    assert "maxRecordsPerSecond" in refused(ConfigurationError, maxrecordspersecond="fast")


def test_letters_and_logs_get_all_options_but_no_secret():
    settings = read_write_options(
        {"url": "shelf:///x?token=env:KEY", "RETRY": "3", "ordering": "KEY", "shelf.password": "env:LOCK"}
    )
    assert settings.configs["retry"] == "3"
    assert settings.configs["shelf.password"] == "env:LOCK"
    assert settings.configs["url"] == "shelf:///x?token=env:KEY"


@pytest.mark.parametrize(
    "options", [{"url": "shelf:///x?token=hunter2"}, {"url": URL, "shelf.maxWeight": "http://me:hunter2@proxy"}]
)
def test_a_secret_written_out_in_any_option_is_refused_and_not_shown(options: dict[str, str]):
    with pytest.raises(ConfigurationError) as caught:
        read_write_options(options)
    assert "hunter2" not in str(caught.value)


def test_a_spec_given_twice_is_refused():
    with pytest.raises(InvalidSpec, match="given twice"):
        read_write_options({"url": URL, "retry": "3"}, spec=DeliverySpec(retry=2))


def test_sinks_of_a_spec_object_are_checked_too():
    with pytest.raises(InvalidURL):
        read_write_options({"url": URL}, spec=DeliverySpec(dead_letter_sink=(Sink(uri="shelf://a:b@c/d"),)))
    with pytest.raises(ConfigurationError, match="no native dead letter place"):
        read_write_options({"url": "crate:///x"}, spec=DeliverySpec(dead_letter_sink=(Sink(uri="native"),)))


def test_client_options_for_a_sink_that_is_not_named_are_refused():
    assert "does not name" in refused(ConfigurationError, **{"sink.shelf.maxWeight": "3"})


def test_client_options_of_another_broker_are_refused():
    assert "unknown option 'crate.maxWeight'" in refused(UnknownOption, **{"crate.maxWeight": "3"})


def test_an_option_of_another_broker_is_told_apart_from_a_mistyped_one():
    told = refused(UnknownOption, **{"tray.maxWeight": "3"})
    assert "it is one of the plugin 'tray', and shelf:///anywhere?queue=orders is opened by 'shelf'" in told
    assert told.endswith("for a sink it is written sink.tray.maxWeight")


def test_a_plugin_that_is_not_installed_is_the_reason_of_its_unknown_options():
    with pytest.raises(UnknownScheme, match="no plugin opens 'cupboard' URLs"):
        read_write_options({"cupboard.doors": "2", "url": "cupboard://broker/orders"})


def test_an_option_of_another_operation_is_said_to_be_one():
    assert "unknown option 'deadletters' here: it is an option of reading dead letters" in refused(
        UnknownOption, deadletters="true"
    )
    read = {"url": URL, "deadLetters": "true"}
    for options, operation in (
        ({"reportPath": "here"}, "writing"),
        ({"startingLetters": "latest"}, "streams of letters"),
    ):
        with pytest.raises(UnknownOption, match=rf"here: it is an option of {operation}"):
            read_read_options({**read, **options}, stream=False)


def test_a_stream_in_the_output_mode_complete_is_told_which_one_to_use():
    with pytest.raises(ConfigurationError, match='use the output mode "append"'):
        RedeliveryDataSource({"url": URL}).streamWriter(StructType(), overwrite=True)


def test_a_spec_of_another_type_is_refused():
    with pytest.raises(
        InvalidSpec, match="spec must be a DeliverySpec, not dict; or give its fields as options: retry=3"
    ):
        read_write_options({"url": URL}, spec={"retry": 3})


def test_only_dead_letters_can_be_read():
    with pytest.raises(ConfigurationError, match="deadLetters"):
        read_read_options({"url": URL})
    with pytest.raises(ConfigurationError, match="cannot be browsed"):
        read_read_options({"url": "crate:///x", "deadLetters": "true"})
    with pytest.raises(UnknownOption, match="retry"):
        read_read_options({"url": URL, "deadLetters": "true", "retry": "1"})
    direct = read_read_options({"deadLetterSink": "shelf:///s?queue=x", "deadLetters": "true", "run": "r"})
    assert (direct.url, direct.direct, direct.run) == ("shelf:///s?queue=x", True, "r")
