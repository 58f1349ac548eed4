"""The command `redelivery`: its table, its JSON, and its errors in one line."""

from __future__ import annotations

import argparse
import errno
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redelivery
from redelivery import cli
from redelivery.cli import plugins as command
from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Limits, Support
from redelivery.errors import ConfigurationError
from redelivery.registry import FailedPlugin, Registry


def nowhere(url: str, options: Mapping[str, str]) -> Broker:
    raise AssertionError(url, options)


def a_plugin(name: str, **capabilities: object) -> BrokerPlugin:
    return BrokerPlugin(
        name=name,
        schemes=(name, f"{name}s"),
        version="1.2.3",
        capabilities=Capabilities(**capabilities),
        connect=nowhere,
        options={"busyTimeout": "wait for a lock, ms"},
    )


def a_registry(*plugins: BrokerPlugin, failed: tuple[FailedPlugin, ...] = ()) -> Registry:
    schemes = {scheme: plugin for plugin in plugins for scheme in plugin.schemes}
    return Registry({plugin.name: plugin for plugin in plugins}, schemes, failed)


ONE = a_registry(
    a_plugin(
        "alpha",
        send=Support.NATIVE,
        attempts=Support.LOWER_BOUND,
        deduplication_window=timedelta(minutes=5),
        columns={"partition": int},
        limits=Limits(message_bytes=1_048_576, delay_max=timedelta(hours=12)),
    ),
    failed=(FailedPlugin("beta", "ModuleNotFoundError: No module named 'beta_client'"),),
)


def test_the_table_names_each_plugin_with_version_contract_and_schemes() -> None:
    assert ["alpha", "1.2.3", "1", "alpha:", "alphas:"] in [line.split() for line in command.as_table(ONE).splitlines()]


def test_the_table_says_of_each_capability_how_well_it_is_supported() -> None:
    lines = [line.split() for line in command.as_table(ONE).splitlines()]
    assert ["send", "native"] in lines
    assert ["attempts", "lower-bound"] in lines
    assert ["receive", "-"] in lines
    assert ["message", "bytes", "1,048,576"] in lines
    assert not [line for line in lines if line[:2] == ["header", "count"]]


def test_the_table_says_what_failed_and_why() -> None:
    table = command.as_table(ONE)
    assert "FAILED TO LOAD\nbeta: ModuleNotFoundError: No module named 'beta_client'" in table


@given(
    st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), max_size=9, unique=True),
    st.sampled_from(Support),
    st.text(st.characters(codec="ascii", categories=["L"]), max_size=40).map(lambda word: f"{word} because " * 9),
)
def test_the_table_keeps_within_80_columns(names: list[str], support: Support, cause: str) -> None:
    found = a_registry(*(a_plugin(name, attempts=support) for name in names), failed=(FailedPlugin("broken", cause),))
    table = command.as_table(found)
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("settles per") <= max(1, len(names))


def test_plugins_side_by_side_are_each_shown_once() -> None:
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"]
    table = command.as_table(a_registry(*(a_plugin(name, attempts=Support.LOWER_BOUND) for name in names)))
    heads = [line.split()[1:] for line in table.splitlines() if line.startswith("capability")]
    assert len(heads) > 1
    assert [name for head in heads for name in head] == names


def test_without_plugins_the_table_says_what_to_install() -> None:
    assert "pip install redelivery" in command.as_table(a_registry())


def test_the_json_holds_every_capability_and_limit() -> None:
    [plugin] = json.loads(json.dumps(command.as_dict(ONE)))["plugins"]
    assert set(plugin["capabilities"]) == {item.name for item in fields(Capabilities)}
    assert set(plugin["capabilities"]["limits"]) == {item.name for item in fields(Limits)}
    assert plugin["capabilities"]["send"] == "native"
    assert plugin["capabilities"]["receive"] == "none"
    assert plugin["capabilities"]["columns"] == {"partition": "int"}
    assert plugin["capabilities"]["deduplication_window"] == "PT5M"
    assert plugin["capabilities"]["limits"]["delay_max"] == "PT12H"
    assert plugin["schemes"] == ["alpha", "alphas"]
    assert (plugin["version"], plugin["contract"]) == ("1.2.3", 1)


def test_the_json_holds_what_failed_and_why() -> None:
    assert command.as_dict(ONE)["failed"] == [
        {"name": "beta", "cause": "ModuleNotFoundError: No module named 'beta_client'"}
    ]


def test_the_markdown_is_one_table_with_a_column_a_plugin() -> None:
    head, ruler, *rows = command.as_markdown(a_registry(a_plugin("alpha"), a_plugin("beta"))).splitlines()
    assert head == "| capability | alpha | beta |"
    assert ruler == "| --- | --- | --- |"
    assert all(row.count("|") == 4 for row in rows)


def test_every_table_shows_a_plugin_s_modes_beside_it() -> None:
    plugin = replace(a_plugin("alpha", delay=Support.NATIVE), modes={"share group": Capabilities()})
    found = a_registry(plugin, a_plugin("beta"))
    head, _, *rows = command.as_markdown(found).splitlines()
    assert head == "| capability | alpha | alpha (share group) | beta |"
    assert "| delay | native | - | - |" in rows
    assert ["delay", "native", "-", "-"] in [line.split() for line in command.as_table(found).splitlines()]
    alpha, beta = command.as_dict(found)["plugins"]
    assert alpha["modes"]["share group"]["delay"] == "none"
    assert beta["modes"] == {}


@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_the_command_prints_what_is_installed(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "discover", lambda: ONE)
    assert cli.main(["plugins", *form]) == 0
    assert "alpha" in capsys.readouterr().out


def failing(parsed: argparse.Namespace) -> int:
    raise ConfigurationError(f"no queue\nat scheme://me:hunter2@host, {parsed.run.__name__}")


def test_an_error_of_ours_is_one_line_on_stderr_without_secrets_and_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_run", failing)
    assert cli.main(["plugins"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "redelivery: no queue at scheme://me:***@host, failing\n"


@pytest.mark.parametrize("arguments", [[], ["plugsin"], ["plugins", "--jsno"], ["plugins", "--json", "--markdown"]])
def test_a_wrong_command_line_exits_2_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: redelivery" in capsys.readouterr().err


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redelivery", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_python_m_redelivery_is_the_same_command() -> None:
    result = run("plugins", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["contract"] == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m redelivery plugins --json | true"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr == ""


class Gone:
    """The output, when its reader has gone, or another error keeps it from being written."""

    def __init__(self, file: IO[str], error: OSError | None = None) -> None:
        self.fileno = file.fileno
        self._error = error or BrokenPipeError()

    def flush(self) -> None:
        raise self._error


@pytest.mark.parametrize("answer", [0, 1])
def test_the_status_is_the_commands_own_whether_or_not_somebody_reads_to_the_end(
    answer: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in `redelivery drift ... | head -1`."""
    monkeypatch.setattr(command, "_run", lambda _: answer)
    with (tmp_path / "output").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Gone(file))
        assert cli.main(["plugins"]) == answer


def test_a_command_that_could_not_say_all_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unread(_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(command, "_run", unread)
    with (tmp_path / "output").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Gone(file))
        assert cli.main(["plugins"]) == cli.UNREAD


def test_an_output_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_run", lambda _: 0)
    with (tmp_path / "output").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Gone(file, OSError(errno.ENOSPC, "No space left on device")))
        assert cli.main(["plugins"]) == cli.FAILED
    assert capsys.readouterr().err == "redelivery: the output cannot be written: No space left on device\n"


def test_a_closed_output_is_nobodys_error() -> None:
    command = f"{sys.executable} -m redelivery plugins >&-"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_what_the_terminal_has_no_character_for_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_run", lambda _: sys.stdout.write("caf\u00e9\n") * 0)
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii") as output:
        monkeypatch.setattr(sys, "stdout", output)
        cli.main(["plugins"])
        assert written.getvalue() == b"caf\\xe9\n"


def test_an_error_drives_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: object) -> int:
        raise ConfigurationError("the server said \x1b]0;pwned\x07")

    monkeypatch.setattr(command, "_run", run)
    assert cli.main(["plugins"]) == cli.FAILED
    assert "\x1b" not in capsys.readouterr().err


SECRETS = [
    ["plan", "carrier://user:c4nary-hunter2@host/q"],
    ["dead-letters", "list", "carrier://host/q?password=c4nary-hunter2"],
    ["dead-letters", "list", "sqlite:a.db?queue=q", "--sink", "carrier://user:c4nary-hunter2@host/q"],
    ["dead-letters", "redrive", "sqlite:a.db?queue=q", "--to", "carrier://user:c4nary-hunter2@host/q"],
    ["dead-letters", "stats", "sqlite:a.db?queue=q", "--option", "carrier.password=c4nary-hunter2"],
    ["run", "sqlite:a.db?queue=q", "os:getcwd", "--option", "carrier.password=c4nary-hunter2"],
    ["dead-letters", "stats", "sqlite:a.db?queue=q", "--option", "carrier.proxy=http://me:c4nary-hunter2@proxy"],
]


@pytest.mark.parametrize("arguments", SECRETS, ids=lambda each: " ".join(each)[:40])
def test_a_secret_on_the_command_line_is_refused_and_not_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == cli.FAILED
    told = capsys.readouterr().err
    assert "every user of this host can see" in told
    assert "env:NAME" in told
    assert "c4nary" not in told


#: What takes long to import, and is no part of a list of plugins.
LONG = ["azure.servicebus", "boto3", "botocore", "cloudevents", "confluent_kafka", "isodate", "nats", "pandas", "pika"]
LONG += ["pyarrow", "pyspark", "re2", "rich", "yaml"]


@pytest.mark.parametrize("arguments", [["--version"], ["plugins"], ["--help"]])
def test_a_command_imports_only_what_it_needs(arguments: list[str]) -> None:
    """Each of these libraries takes a part of a second, and the plugins' clients take most of two."""
    text = f"""
import sys
from redelivery.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print("imported:", [name for name in {LONG!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("imported: []\n")


def test_a_plugin_whose_client_is_not_installed_is_reported_though_nothing_imports_it_to_list_plugins() -> None:
    text = """
import importlib.util, sys
from unittest.mock import patch
from redelivery.cli import main
found = importlib.util.find_spec
names = {"boto3", "confluent_kafka", "nats", "pika", "azure.servicebus"}
with patch("redelivery.kit.clients.find_spec", lambda name: None if name in names else found(name)):
    main(["plugins", "--json"])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    failed = {each["name"]: each["cause"] for each in json.loads(done.stdout)["failed"]}
    named = {"kafka": "confluent_kafka", "nats": "nats", "rabbitmq": "pika"}
    named |= {"servicebus": "azure.servicebus", "sqs": "boto3"}
    assert failed == {name: f"ModuleNotFoundError: No module named {each!r}" for name, each in named.items()}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["dead-leters", "list", "x"],
            "redelivery: error: unknown command 'dead-leters'; did you mean 'dead-letters'?",
        ),
        (["dead-letters", "lst", "x"], "redelivery dead-letters: error: unknown command 'lst'; did you mean 'list'?"),
        (["it's"], """redelivery: error: unknown command "it's"; known are: apply, completion, """),
    ],
)
def test_a_mistyped_command_names_the_nearest_one(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == cli.FAILED
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)


@pytest.mark.parametrize("arguments", [[], ["dead-letters"]])
def test_without_a_command_its_help_is_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == cli.FAILED
    told = capsys.readouterr().err
    assert "show this help message" in told
    assert "error:" not in told


def test_the_package_shows_its_own_names_and_no_others() -> None:
    """As completion shows them in a shell or a notebook; each can be used without another import."""
    text = """
import redelivery
print(*(name for name in dir(redelivery) if not name.startswith("_")))
print(redelivery.__version__, redelivery.spark.deliver.__name__, redelivery.errors.Fatal.__name__)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    names, used = done.stdout.splitlines()
    assert set(names.split()) == {*redelivery.__all__, "contract", "errors", "kit", "spark"}
    assert used == f"{version('redelivery-core')} deliver Fatal"


def test_a_report_is_a_line_in_a_log_and_a_table_in_a_notebook() -> None:
    report = redelivery.DeliveryReport(rows=3, dead_lettered=1, primary="x:<y>", run="r")
    report.at("x:<y>").delivered = 2
    report.because("TOO_LARGE (<413>)")
    assert str(report).startswith("run r: 3 rows: 2 delivered to x:<y>, 1 dead-lettered, 0 skipped")
    assert str(report).endswith("; 1 for TOO_LARGE (<413>)")
    table = report._repr_html_()
    assert "<th>delivered to x:&lt;y&gt;</th><td>2</td>" in table
    assert "<th>for TOO_LARGE (&lt;413&gt;)</th><td>1</td>" in table
