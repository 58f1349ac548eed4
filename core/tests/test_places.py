"""Places: names for URLs, in a file that holds no secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from redelivery import cli, places
from redelivery.errors import ConfigurationError
from redelivery.places import Place

WHOLE = """
[watch]
interval = 30

[places.orders]
url = "sqlite:orders.db"
sink = "sqlite:dead.db?queue=d"
spec = "specs/orders.yaml"
key = "env:LETTER_KEY, file:/run/key"
subscription = "shop"
options = { "sqlite.timeout" = 5, "kafka.sasl.password" = "env:KAFKA", "kafka.x" = true }

[places.orders.watch]
oldest = "PT1H"

[places."bills-eu.1"]
url = "sqlite:bills.db"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("REDELIVERY_CONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "project" / "jobs"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def written(folder: Path, text: str) -> Path:
    path = folder / places.FILE
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_all_of_a_place(here: Path) -> None:
    path = written(here.parent, WHOLE)
    found = places.read(path)
    assert found["orders"] == Place(
        name="orders",
        url="sqlite:orders.db",
        sink="sqlite:dead.db?queue=d",
        spec=here.parent / "specs/orders.yaml",
        options={"sqlite.timeout": "5", "kafka.sasl.password": "env:KAFKA", "kafka.x": "true"},
        key="env:LETTER_KEY, file:/run/key",
        subscription="shop",
        watch={"oldest": "PT1H"},
    )
    assert found["bills-eu.1"] == Place(name="bills-eu.1", url="sqlite:bills.db")
    assert (list(found), found.path, found.watch) == (["orders", "bills-eu.1"], path, {"interval": 30})


def test_a_folder_that_is_not_ours_to_look_into_has_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root's own folder has none for a service that was started there."""
    written(here, "")

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert places.find() is None


def test_a_current_folder_that_is_gone_has_no_file(here: Path) -> None:
    here.rmdir()
    assert places.find() is None


def test_it_is_found_in_the_folder_or_above_it(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = written(tmp_path, "")
    assert places.find() == above
    near = written(here, "")
    assert places.find() == near
    assert places.find(here.parent) == above
    near.unlink()
    near.mkdir()  # no file
    assert places.find() == above
    monkeypatch.setenv("REDELIVERY_CONFIG", str(tmp_path / "other.toml"))
    assert places.find() == tmp_path / "other.toml"
    with pytest.raises(ConfigurationError, match=r"other\.toml: No such file"):
        places.known()
    assert places.known(above).path == above


def test_a_file_of_another_user_is_not_followed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(here, WHOLE)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        places.known()
    assert len(places.known(path)) == 2


@pytest.mark.parametrize(("text", "says"), [
    ("[place.orders]\nurl = 'sqlite:x'", "unknown key 'place'; did you mean 'places'"),
    ("[places.orders]\nurl = 'sqlite:x'\nsnk = 'sqlite:y'", "unknown key in places.orders: 'snk'; did you mean 'sink'"),
    ("[places.orders]\nsink = 'sqlite:y'", "places.orders has no url"),
    ("[places.orders]\nurl = 'orders'", "not a URL: 'orders'"),
    ("[places.orders]\nurl = 5", "places.orders.url must be text"),
    ("[places.'a:b']\nurl = 'sqlite:x'", "'a:b' is not a name of a place"),
    ("[places.'']\nurl = 'sqlite:x'", "is not a name of a place"),
    ("[places]\norders = 'sqlite:x'", "places.orders must be a table"),
    ("places = 5", "places must be a table"),
    ("[places.orders]\nurl = 'amqp://u:hunter22x@h/q'", "holds a password, which every reader of this file would see"),
    ("[places.orders]\nurl = 'sqlite:x'\nsink = 'amqp://u:hunter22x@h/q'", "places.orders.sink: the URL"),
    ("[places.orders]\nurl = 'sqlite:x'\nkey = 'hunter22xhunter22x'", "it is a reference"),
    ("[places.orders]\nurl = 'sqlite:x'\noptions = {'kafka.sasl.password' = 'hunter22x'}", "holds a secret"),
    ("[places.orders]\nurl = 'sqlite:x'\n[places.orders.options]\nkafka.sasl.password = 'hunter22x'", "quote a name"),
    ("[places.orders]\nurl = 'sqlite:x'\noptions = ['a']", "options must be a table"),
    ("[places.orders]\nurl = 'sqlite:x'\nurl = 'sqlite:y'", "not valid TOML"),
    ("a = " + "[" * 5000, "not valid TOML"),
    ("\ud800", "is not UTF-8"),
])  # fmt: skip
def test_what_is_wrong_is_one_clear_line_without_secrets(here: Path, text: str, says: str) -> None:
    path = here / places.FILE
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigurationError) as caught:
        places.read(path)
    said = str(caught.value)
    assert says in said
    assert str(path) in said
    assert "hunter22x" not in said
    assert "\n" not in said


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_commands_take_the_name_of_a_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"[places.orders]\nurl = 'sqlite:{here}/q.db?queue=orders'\nspec = 'orders.yaml'\n"
    written(here.parent, text)
    (here.parent / "orders.yaml").write_text("delivery:\n  deadLetterSink: native\n  retry: 2\n")
    assert run(capsys, "plan", "orders")[0] == 0
    assert run(capsys, "drift", "orders")[0] == 1
    assert run(capsys, "apply", "orders")[0] == 0
    assert run(capsys, "drift", "orders")[0] == 0
    for what in ("list", "stats", "redrive", "history", "export"):
        assert run(capsys, "dead-letters", what, "orders")[0] == 0
    assert "0 dead letters" in run(capsys, "dead-letters", "stats", "orders")[1]
    assert run(capsys, "dead-letters", "show", "orders", "nobody")[2].startswith("redelivery: no such letter")


def test_the_command_line_counts_more_than_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"[places.orders]\nurl = 'sqlite:{here}/q.db?queue=orders'\nsink = 'nowhere:x'\nspec = 'missing.yaml'\n"
        "options = { 'sqlite.no_such_option' = '1' }\n"
    )
    config = here / "other.toml"
    config.write_text(text)
    known = ("--config", str(config))
    assert "nowhere" in run(capsys, "dead-letters", "stats", "orders", *known)[2]
    sink = ("--sink", f"sqlite:{here}/d.db?queue=d")
    assert "no_such_option" in run(capsys, "dead-letters", "stats", "orders", *known, *sink)[2]
    assert "missing.yaml" in run(capsys, "dead-letters", "redrive", "orders", *known, *sink)[2]
    own = (*known, *sink, "--option", "retry=1")
    assert "no_such_option" in run(capsys, "dead-letters", "redrive", "orders", *own)[2]
    config.write_text(text.replace("options =", "# "))
    assert run(capsys, "apply", sink[1])[0] == 0
    assert run(capsys, "dead-letters", "stats", "orders", *known, *sink) == (0, "0 dead letters, 0 bytes\n", "")


def test_a_name_that_no_place_has_lists_those_that_exist(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(here, WHOLE)
    status, _, err = run(capsys, "dead-letters", "stats", "ordres")
    assert status == 2
    assert "no such place: 'ordres'; did you mean 'orders'?" in err
    assert "bills-eu.1, orders" in err
    assert "no place" in run(capsys, "drift", "x", "--config", os.devnull)[2]


def test_places_are_listed_without_secrets(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(here, WHOLE)
    _, out, _ = run(capsys, "places")
    assert out.splitlines()[0] == str(path)
    assert "orders      sqlite:orders.db  sink sqlite:dead.db?queue=d" in out
    found = json.loads(run(capsys, "places", "--json")[1])
    assert found["places"]["orders"]["options"]["kafka.sasl.password"] == "env:KAFKA"
    path.write_text("")
    assert "names no place" in run(capsys, "places")[1]
