"""`redelivery plan|apply|drift`: one spec, in any of its forms, shown, made and compared."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from redelivery import cli
from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus
from redelivery.registry import connect

FORMS = {
    "delivery.yaml": "deadLetterSink: native\nretry: 3\n",
    "delivery.json": '{"spec": {"delivery": {"deadLetterSink": {"uri": "native"}, "retry": 3}}}',
    "delivery.properties": "# as a connector has it\nerrors.tolerance=all\n"
    "errors.retry.limit=3\nerrors.deadletterqueue.topic.name = native\n",
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/q.db?queue=orders"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "URL"),
        ("apply", "URL"),
        ("drift", "URL"),
        ("run", "URL", "json:loads"),
        *(("dead-letters", each, "URL") for each in ("list", "stats", "redrive", "forward", "purge")),
    ],
)
def test_every_command_refuses_what_is_insecure_where_it_is_told_to(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    with connect(url) as broker:
        monkeypatch.setattr(type(broker), "insecure", ("anybody can read it",), raising=False)
    words = [url if each == "URL" else each for each in command]
    status, _, err = run(capsys, *words, "--option", "redelivery.strict=true")
    assert (status, "anybody can read it; redelivery.strict refuses that" in err) == (2, True), err


@pytest.mark.parametrize("name", FORMS)
def test_a_spec_of_any_form_is_planned_applied_and_compared(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    spec = tmp_path / name
    spec.write_text(FORMS[name])
    status, out, _ = run(capsys, "plan", url, "--spec", str(spec))
    assert status == 0
    for each in ("+ queue orders", "max_deliveries = 14", "to be made", "retries after a delay"):
        assert each in out
    assert all(len(line) <= 80 or str(tmp_path) in line for line in out.splitlines())
    assert not (tmp_path / "q.db").exists(), "planning made something"
    assert run(capsys, "drift", url, "--spec", str(spec))[0] == 1
    status, out, _ = run(capsys, "apply", url, "--spec", str(spec))
    assert json.loads(out)["deadLetterSinkUri"].endswith("queue=orders-dead-letters")
    status, out, _ = run(capsys, "drift", url, "--spec", str(spec))
    assert (status, "is as the spec wants it" in out) == (0, True)


def test_what_differs_is_named_and_never_altered(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "apply", url, "--option", "retry=3")[0] == 0
    status, out, _ = run(capsys, "drift", url, "--option", "retry=9")
    assert (status, "max_deliveries = 14, and should be 20" in out) == (1, True)
    status, _, err = run(capsys, "apply", url, "--option", "retry=9")
    assert (status, "max_deliveries is '14', not '20'" in err) == (2, True)
    connection = sqlite3.connect(tmp_path / "q.db")
    assert connection.execute("SELECT max_deliveries FROM queue WHERE name = 'orders'").fetchone() == (14,)
    connection.close()


def test_json_says_all_of_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "plan", url, "--json", "--option", "deadLetterSink=native")[1])
    assert found["drift"] is True
    assert found["support"]["retries after a delay"] == "native"
    assert {each["action"] for each in found["objects"]} == {"create"}
    assert found["status"]["deadLetterSinkUri"]


def test_a_spec_without_a_sink_has_none_in_its_status_whatever_is_made(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place for what the broker itself dead-letters is made, but no row that fails goes there."""
    text = run(capsys, "plan", url)[1]
    assert "No dead letter sink." in text
    assert "Dead letters go to" not in text
    found = json.loads(run(capsys, "plan", url, "--json")[1])
    assert found["status"] == {}
    assert "orders-dead-letters" in {each["name"] for each in found["objects"]}
    status, out, err = run(capsys, "apply", url)
    assert (status, json.loads(out)) == (0, {})
    assert "The spec has no dead letter sink" in err


def test_the_status_of_a_sink_elsewhere_is_that_sinks_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = ("--option", "deadLetterSink=file:///somewhere")
    wanted = {"deadLetterSinkUri": "file:///somewhere"}
    assert json.loads(run(capsys, "plan", url, "--json", *option)[1])["status"] == wanted
    assert "Dead letters go to file:///somewhere" in run(capsys, "plan", url, *option)[1]
    assert json.loads(run(capsys, "apply", url, *option)[1]) == wanted


def test_the_status_of_a_ref_has_the_ref_itself_and_its_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = ("--option", 'deadLetterSink={"ref": {"kind": "Queue", "name": "letters"}}')
    found = json.loads(run(capsys, "plan", url, "--json", *option)[1])["status"]
    assert found["deadLetterSinkUri"].endswith("queue=letters")
    assert found["deadLetterChannel"] == {"kind": "Queue", "name": "letters"}
    assert json.loads(run(capsys, "apply", url, *option)[1]) == found


def test_the_native_place_has_a_channel_that_is_resolved_again(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "apply", url, "--option", "deadLetterSink=native")[1])
    again = json.dumps({"ref": found["deadLetterChannel"]})
    same = json.loads(run(capsys, "apply", url, "--option", f"deadLetterSink={again}")[1])
    assert same == found


def test_it_says_when_a_task_ends_into_a_destination_that_accepts_nothing(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ("--option", "retry=2", "--option", "timeout=PT2S", "--option", "backoffDelay=PT0.5S")
    assert "a task that writes ends within 23 s" in run(capsys, "plan", url, *spec)[1]
    assert json.loads(run(capsys, "plan", url, "--json", *spec)[1])["ends_within_seconds"] == 23.0
    endless = ("--option", "errors.retry.timeout=-1")
    assert "a task that writes ends never by itself" in run(capsys, "plan", url, *endless)[1]
    assert json.loads(run(capsys, "plan", url, "--json", *endless)[1])["ends_within_seconds"] is None


def warnings(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> str:
    return " ".join(json.loads(run(capsys, "plan", url, "--json", *arguments)[1])["warnings"])


def test_it_warns_of_what_an_operator_should_see_to(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{url.replace('sqlite:', 'sqlite://')}-dead-letters"
    assert "no deadLetterSink is set" in warnings(capsys, url)
    assert not warnings(capsys, url, "--option", "deadLetterSink=native")
    reads = ("--option", "deadLetterSink=native", "--reads", place)
    assert "the job reads its own dead letter sink" in warnings(capsys, url, *reads)
    gone = ("--option", "errors.tolerance=all", "--option", "allowSkip=true")
    assert "is counted and dropped" in warnings(capsys, url, *gone)
    other = url.replace("orders", "other")
    said = warnings(capsys, url, "--option", f"deadLetterSink={other}", "--reads", other)
    assert "is another place" in said
    assert "the job reads its own dead letter sink" in said


def test_retries_beyond_the_window_of_ids_are_warned_of(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--option", "deadLetterSink=native", "--option", "errors.retry.timeout=7200000")
    assert "may be stored twice" not in warnings(capsys, url, *options)
    options = (*options, "--option", "sqlite.deduplication_window=3600")
    assert "ids are remembered here, PT1H: a row that is sent again" in warnings(capsys, url, *options)


def test_a_loop_of_dead_letters_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = f"sqlite://{tmp_path}/q.db?queue=orders"
    url = f"{sink}-dead-letters"
    assert "a loop" in warnings(capsys, url, "--option", f"deadLetterSink={sink}")
    status, _, err = run(capsys, "plan", url, "--option", f"deadLetterSink={url}")
    assert (status, "is the destination itself" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [("retry=1\nretry=2\n", "line 2: retry is written twice"), ("nonsense\n", "line 1 is not a property")],
)
def test_properties_that_do_not_parse_say_where(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    spec = tmp_path / "x.properties"
    spec.write_text(text)
    status, _, err = run(capsys, "plan", url, "--spec", str(spec))
    assert (status, says in err) == (2, True)


def test_a_spec_is_given_once(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "delivery.yaml"
    spec.write_text("retry: 3\n")
    assert "given twice" in run(capsys, "plan", url, "--spec", str(spec), "--option", "retry=3")[2]
    assert "No such file" in run(capsys, "plan", url, "--spec", str(tmp_path / "none.yaml"))[2]
    assert "NAME=VALUE" in run(capsys, "plan", url, "--option", "retry")[2]


@pytest.mark.parametrize("command", [["plan"], ["apply"], ["drift"], ["dead-letters", "list"]])
def test_a_subscription_where_no_name_has_a_copy_is_refused_with_the_reason(
    command: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, url, "--subscription", "billing"]) == 2
    assert "a message here is for one receiver" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "drift"])
def test_what_a_broker_says_of_its_objects_drives_no_terminal_and_forges_no_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    evil = "\x1b]0;owned\x07\x7f\u202e\n! queue forged"
    item = NativeObject(
        kind="queue",
        name=f"orders{evil}",
        action="differs",
        attributes={f"length{evil}": evil},
        differences=[Difference("kind", evil, f"found{evil}")],
    )
    found = Plan(objects=[item], status=DeliveryStatus(), approximations=[evil])
    with connect(url) as broker:
        monkeypatch.setattr(type(broker), "admin", lambda _: Hostile(found))
    status, out, err = run(capsys, command, url)
    assert (status, err) == (1 if command == "drift" else 0, "")
    assert not {"\x1b", "\x07", "\x7f", "\u202e"} & set(out)
    assert "\\x1b]0;owned" in out
    assert not any(line.startswith("! queue forged") for line in out.splitlines())
    out = run(capsys, command, url, "--json")[1]
    assert json.loads(out)["objects"][0]["name"] == item.name
    assert "\x7f" not in out


class Hostile(Admin):
    """Answers with what somebody else has named."""

    def __init__(self, found: Plan) -> None:
        self._found = found

    def plan(self, spec: DeliverySpec) -> Plan:
        return self._found

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        return self._found.status

    def depth(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""


def test_a_sink_that_no_plugin_opens_is_refused_by_plan_as_by_a_job(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "drift", "apply"):
        status, _, err = run(capsys, command, url, "--option", "deadLetterSink=fil:/tmp/letters")
        assert status == 2
        assert "no plugin opens 'fil' URLs" in err
        assert "did you mean 'file'?" in err
