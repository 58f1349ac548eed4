"""`redelivery watch`: alerts, exit codes, metrics over HTTP, and what a restart remembers; on the embedded default."""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from buried import Place
from prometheus_client.parser import text_string_to_metric_families
from test_watch_webhook import serving

from redelivery import cli
from redelivery.base.clock import SystemClock
from redelivery.cli.watch import is_told
from redelivery.codes import Code
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import ConfigurationError
from redelivery.watch.looking import Known, Looker, Watched
from redelivery.watch.memory import Memory
from redelivery.watch.metrics import GROUPS, Metrics, PlaceFigures
from redelivery.watch.rules import Rules
from redelivery.watch.serving import Server
from redelivery.watch.watcher import PlaceWatch, Watch

WAIT = 30.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


def once(*arguments: str) -> int:
    return cli.main(["watch", "--once", *arguments])


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what a scrape says; the labels of the place are left out."""
    return {
        (each.name, frozenset((k, v) for k, v in each.labels.items() if k not in {"place", "broker"})): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def of(found: dict[Any, float], name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


# --- once ---


def test_it_is_quiet_where_nothing_is_wrong(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.bury(3)
    assert once(place.url, "--older-than", "1h", "--growth", "100/5m", "--new-group") == 0
    assert once(place.url, "--older-than", "1h", "--growth", "100/5m", "--new-group") == 0
    assert caplog.messages == []


def test_letters_that_come_between_two_looks_are_alerted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.bury(3)
    assert once(place.url, "--growth", "2/5m") == 0
    place.bury(2, first=3)
    assert once(place.url, "--growth", "2/5m") == 1
    assert "2 dead letters arrived within 5 min (limit 2)" in caplog.text


def test_an_old_letter_is_alerted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.bury(1)
    assert once(place.url, "--older-than", "1ms") == 1
    assert "the oldest dead letter is" in caplog.text


def test_a_new_group_is_alerted_and_told_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.bury(1, code="FULL")
    assert once(place.url, "--new-group") == 0
    place.bury(1, first=1, code="BUG")
    assert once(place.url, "--new-group") == 1
    assert once(place.url, "--new-group") == 1  # it is active for an hour
    assert len([each for each in caplog.messages if "new group" in each]) == 1


def test_a_place_that_does_not_exist_is_alerted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    assert once(place.url) == 1
    assert "does not exist" in caplog.text
    assert "redelivery apply" in caplog.text


def test_an_alert_that_nobody_heard_is_raised_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.bury(1, code="FULL")
    hook = ["--webhook", "env:HOOK", "--new-group"]
    with serving(404) as server:
        monkeypatch.setenv("HOOK", server.url)
        assert once(place.url, *hook) == 0
        place.bury(1, first=1, code="BUG")
        for _ in range(2):
            assert once(place.url, *hook) == 1
        server.answers = [200]
        assert once(place.url, *hook) == 1
        assert [len(each["alerts"]) for each in server.heard] == [1, 1, 1]
        assert once(place.url, *hook) == 1
        assert len(server.heard) == 3
        (alert,) = server.heard[-1]["alerts"]
    assert (alert["alert"], alert["code"], alert["status"]) == ("new-group", "BUG", "raised")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["carrier:x"], "no plugin opens"),
        (["orders"], "no such place"),
        (["sqlite:x.db", "--older-than", "soon"], "--older-than: 'soon' is not a duration"),
        (["sqlite:x.db", "--older-than", "0s"], "too short"),
        (["sqlite:x.db", "--older-than", "400d"], "too long"),
        (["sqlite:x.db", "--growth", "5"], "write COUNT/TIME"),
        (["sqlite:x.db", "--growth", "0/5m"], "write COUNT/TIME"),
        (["sqlite:x.db", "--interval", "1us"], "--interval"),
        (["sqlite:x.db", "--listen", "nowhere"], "write HOST:PORT"),
        (["sqlite:x.db", "--listen", "127.0.0.1:99999"], "write HOST:PORT"),
        (["sqlite:x.db", "--webhook", "https://hooks.example.com/T0P"], "write a reference"),
        (["sqlite:x.db", "--webhook", "env:NOT_SET_AT_ALL"], "not set"),
        (["sqlite:x.db", "--webhook-form", "slak"], "did you mean 'slack'"),
        (["sqlite:x.db", "sqlite:x.db"], "named twice"),
        (["sqlite:x.db", "--option", "sqlite.nothing=1"], "unknown option"),
        (["sqlite://u:pass@h/x.db"], "holds a password"),
        ([], "name a URL, or places"),
        (["sqlite:x.db", "--config", "none.toml"], "none.toml"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    place: Place, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert once(*arguments) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert "T0P" not in said
    assert ":pass" not in said


@pytest.mark.parametrize(
    ("name", "level", "told"),
    [
        ("redelivery.watch.watcher", logging.INFO, True),
        ("redelivery.watch.webhook", logging.ERROR, True),
        ("redelivery.carrier.client", logging.INFO, False),
        ("redelivery.registry", logging.WARNING, True),
        ("a_client.connection", logging.ERROR, False),
    ],
)
def test_clients_do_not_fill_the_log_of_a_broker_that_is_down(name: str, level: int, told: bool) -> None:
    assert is_told(logging.LogRecord(name, level, "", 0, "", (), None)) == told


# --- the file ---


def test_places_and_rules_come_from_the_file_and_the_command_line_counts_more(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.bury(1)
    (tmp_path / "redelivery.toml").write_text(
        f'[watch]\ngrowth = "5/1m"\n[places.orders]\nurl = "{place.url}"\n[places.orders.watch]\nolder-than = "1ms"\n'
    )
    assert once() == 1
    assert "orders: the oldest dead letter" in caplog.text
    assert once("orders", "--older-than", "1h") == 0
    assert once("orders", "--older-than", "off") == 0
    place.bury(5, first=1)
    assert once("orders", "--older-than", "off") == 1
    assert once("orders", "--older-than", "off", "--growth", "99/1m") == 0


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('[places.orders.watch]\nolder_than = "1h"', "did you mean 'older-than'"),
        ("[places.orders.watch]\nolder-than = 5", "places.orders.watch.older-than must be text"),
        ('[places.orders.watch]\nnew-group = "yes"', "must be true or false"),
        ('[places.orders.watch]\nwebhook = "env:X"', "[places.orders.watch]: unknown key 'webhook'"),
        ('[watch]\ninterval = "soon"', "watch.interval: 'soon' is not a duration"),
        ("[watch]\nx = 1", "[watch]: unknown key 'x'"),
    ],
)
def test_the_keys_of_the_file_are_closed(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, why: str
) -> None:
    (tmp_path / "redelivery.toml").write_text(f'[places.orders]\nurl = "{place.url}"\n{table}\n')
    assert once() == 2
    assert why in capsys.readouterr().err


# --- what is remembered ---


def test_a_memory_is_private_and_one_of_another_place_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory("sqlite:a.db", tmp_path / "new")
    assert memory.read() is None
    memory.write({"looks": {}, "alerts": {}})
    assert memory.path.stat().st_mode & 0o777 == 0o600
    assert list((tmp_path / "new").iterdir()) == [memory.path]
    assert memory.read() == {"version": 1, "place": "sqlite:a.db", "looks": {}, "alerts": {}}
    other = Memory("sqlite:b.db", tmp_path / "new")
    memory.path.rename(other.path)
    assert other.read() is None
    assert "another place" in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1, "place": "HERE"}',
        b'{"version": 1, "place": "HERE", "looks": 1, "alerts": 2}',
        b'{"version": 1, "place": "HERE", "looks": {}, "alerts": {"active": [{"rule": "x"}]}}',
    ],
)
def test_a_damaged_memory_is_as_none(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    place.bury(1)
    memory = Memory("it", tmp_path)
    memory.path.write_bytes(said.replace(b"HERE", b"it"))
    watch = PlaceWatch(
        Watched(label="orders", url=place.url, broker="sqlite"), Rules(new_group=True), SystemClock(), memory
    )
    assert watch.turn() == []
    assert "is not used" in caplog.text


def test_a_link_in_place_of_the_memory_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory("it", tmp_path)
    (tmp_path / "elsewhere").write_text("{}")
    memory.path.symlink_to(tmp_path / "elsewhere")
    assert memory.read() is None
    memory.write({})
    memory.write({})
    assert (tmp_path / "elsewhere").read_text() == "{}"
    assert len([each for each in caplog.messages if "cannot be written" in each]) == 1


# --- the endpoint ---


@contextmanager
def watching(place: Place, rules: Rules | None = None, **more: Any) -> Iterator[tuple[Watch, Server]]:
    clock = SystemClock()
    watched = Watched(label="orders", url=place.url, broker="sqlite")
    watch = Watch([(watched, rules or Rules())], clock, interval=0.05, **more)
    thread = threading.Thread(target=watch.run)
    with Server("127.0.0.1", 0, Metrics(watch.figures, None, clock), watch.healthy) as server:
        thread.start()
        try:
            yield watch, server
        finally:
            watch.stop()
            thread.join(WAIT)
            assert not thread.is_alive()


def scraped(server: Server, path: str = "/metrics") -> str:
    with urllib.request.urlopen(server.url.replace("/metrics", path), timeout=WAIT) as answer:  # noqa: S310 - our own
        assert answer.status == 200
        return answer.read().decode()


def test_metrics_are_scraped(place: Place) -> None:
    place.bury(3, code="FULL")
    with watching(place, Rules(new_group=True)) as (_, server):
        found = until(lambda: (found := samples(scraped(server))) and of(found, "redelivery_up") and found)
        assert of(found, "redelivery_dead_letters") == 3
        assert 0 <= (of(found, "redelivery_oldest_dead_letter_age_seconds") or 0) < 60
        assert of(found, "redelivery_dead_letters_by_code", code="FULL") == 3
        assert of(found, "redelivery_dead_letters_arrived_total", code="FULL") == 0
        assert of(found, "redelivery_redriven_total", outcome="failed") == 0
        place.bury(2, first=3, code="BUG")
        found = until(
            lambda: of(found := samples(scraped(server)), "redelivery_dead_letters_arrived_total", code="BUG") and found
        )
        assert of(found, "redelivery_dead_letters_arrived_total", code="BUG") == 2
        assert of(found, "redelivery_dead_letters") == 5
        assert of(found, "redelivery_watch_alerts", alert="new-group") == 1
        place.file.unlink()
        found = until(lambda: of(found := samples(scraped(server)), "redelivery_up") == 0 and found)
        assert of(found, "redelivery_dead_letters") is None
        assert of(found, "redelivery_dead_letters_arrived_total", code="BUG") == 2
        until(lambda: of(samples(scraped(server)), "redelivery_watch_alerts", alert="unreachable"))
        assert scraped(server, "/healthz") == "ok\n"


def test_redrives_are_counted_by_outcome(place: Place, tmp_path: Path) -> None:
    place.bury(1)
    audit = AuditLog()
    watched = Watched(label="orders", url=place.url, broker="sqlite")
    with dead_letters(place.url) as dlq:
        where = dlq.place
    audit.record("redrive", where, details={"redriven": 100})  # long before the watch began
    time.sleep(0.002)
    watch = PlaceWatch(watched, Rules(), SystemClock(), Memory("it", tmp_path), audit=audit)
    audit.record("redrive", where, details={"redriven": 3, "failed": 0, "left": {"parked": 2, "hops": 1}, "error": "x"})
    audit.record("redrive", "sqlite:another", details={"redriven": 9})
    audit.record("forward", where, details={"redriven": 9})
    audit.record("move-back", where, details={"moved": 5})
    name = audit.record("redrive", where, outcome="began")
    watch.turn()
    assert watch.figures().redriven == {"redriven": 8, "left": 3}
    audit.record("redrive", where, outcome="failed", operation=name, details={"redriven": 1, "failed": 4})
    watch.turn()
    watch.turn()
    assert watch.figures().redriven == {"redriven": 9, "left": 3, "failed": 4}


def figures(**more: Any) -> PlaceFigures:
    known = Known(count=5, looked_ms=1, whole_ms=1, **more)
    return PlaceFigures(
        place='a "place"\n{}', broker="b", up=True, known=known, looks=1, failures=0, active={}, redriven={}
    )


def served(*places: PlaceFigures) -> Sequence[Any]:
    return list(Metrics(lambda: places, None, SystemClock()).collect())


def test_the_number_of_series_is_bounded(place: Place) -> None:
    from collections import Counter  # noqa: PLC0415

    groups = Counter({f"{at:012x}": at + 1 for at in range(1000)})
    codes = Counter({each.value: 1 for each in Code})
    families = {each.name: each for each in served(figures(groups=groups, others=7, by_code=codes, arrived=codes))}
    found = {each.labels["group"]: each.value for each in families["redelivery_dead_letters_by_group"].samples}
    assert len(found) == GROUPS + 1
    assert found["other"] == sum(range(1, 1001 - GROUPS)) + 7
    assert sum(len(each.samples) for each in families.values()) < 2 * len(Code) + 50


def test_metrics_keep_prometheus_conventions() -> None:
    families = list(Metrics(list, None, SystemClock()).describe())
    assert len(families) > 10
    for each in families:
        assert each.name.startswith("redelivery_")
        assert each.documentation.endswith(".")
        assert not each.name.endswith("_total")


def test_other_paths_and_methods_are_refused(place: Place) -> None:
    clock = SystemClock()
    healthy = [True]
    with Server("127.0.0.1", 0, Metrics(list, None, clock), lambda: healthy[0]) as server:
        address = server.url.split("/")[2]

        def asked(method: str, path: str) -> int:
            connection = http.client.HTTPConnection(address, timeout=WAIT)
            connection.request(method, path)
            status = connection.getresponse().status
            connection.close()
            return status

        assert asked("GET", "/metrics") == asked("GET", "/") == asked("GET", "/healthz") == 200
        assert asked("GET", "/etc/passwd") == 404
        assert asked("POST", "/metrics") == 405
        healthy[0] = False
        assert asked("GET", "/healthz") == 503


def test_a_client_that_says_nothing_holds_up_no_other(place: Place) -> None:
    with Server("127.0.0.1", 0, Metrics(list, None, SystemClock()), lambda: True) as server:
        host, port = server.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as other:
            other.sendall(b"GET /met")
            assert scraped(server, "/healthz") == "ok\n"


def test_a_request_without_a_version_is_refused(place: Place) -> None:
    """On Python 3.14 `http.server` gives such a request no headers, for which `wsgiref` looks."""
    with Server("127.0.0.1", 0, Metrics(list, None, SystemClock()), lambda: True) as server:
        host, port = server.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=WAIT) as client, client.makefile("rb") as answer:
            client.sendall(b"GET /metrics\r\n")
            client.shutdown(socket.SHUT_WR)
            assert b"Error code: 505" in answer.read()


def test_an_address_in_use_is_one_clear_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with Server("127.0.0.1", 0, Metrics(list, None, SystemClock()), lambda: True) as server:
        address = server.url.split("/")[2]
        assert cli.main(["watch", place.url, "--listen", address]) == 2
    assert f"--listen {address}: Address already in use" in capsys.readouterr().err
    with pytest.raises(ConfigurationError):
        Server("no.such.host.invalid", 1, Metrics(list, None, SystemClock()), lambda: True)


def test_a_place_that_hangs_is_not_healthy_and_holds_up_no_other(place: Place, tmp_path: Path) -> None:
    release = threading.Event()

    class Hangs(Looker):
        def look(self, *, whole: bool = False) -> Any:
            release.wait(WAIT)
            return super().look(whole=whole)

    class Late(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + late[0]

    late = [0.0]
    clock = Late()
    place.bury(1)
    one, other = (Watched(label=name, url=place.url, broker="sqlite") for name in ("one", "other"))
    watch = Watch([(one, Rules()), (other, Rules())], clock, interval=0.05, folder=tmp_path)
    watch.places[0]._looker = Hangs(one, clock)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        until(lambda: watch.figures()[1].looks > 2)
        assert watch.healthy()
        late[0] = 3600.0
        looks = watch.figures()[1].looks
        until(lambda: watch.figures()[1].looks > looks + 1)
        assert not watch.healthy()
    finally:
        watch.stop()
        release.set()
        thread.join(WAIT)


# --- the process ---

MEASURE = """
import resource, sys
from redelivery.base.clock import SystemClock
from redelivery.watch.looking import Looker, Watched

looker = Looker(Watched(label="orders", url=sys.argv[1], broker="sqlite"), SystemClock())
assert Looker(Watched(label="orders", url=sys.argv[2], broker="sqlite"), SystemClock()).look().count == 10_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert looker.look().count == 100_000
assert looker.look().count == 100_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_ten_times_the_letters_take_no_more_memory(place: Place, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    few = Place(tmp_path / "few")
    few.bury(10_000)
    for first in range(0, 100_000, 10_000):
        place.bury(10_000, first=first)
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, place.url, few.url], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 20_000  # kilobytes: 200 bytes a letter at most, and all of them have more


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_what_waits_is_told(place: Place, tmp_path: Path, number: signal.Signals) -> None:
    place.bury(1)
    command = [sys.executable, "-m", "redelivery", "watch", place.url, "--listen", "127.0.0.1:0"]
    command += ["--older-than", "1ms", "--webhook", "env:HOOK", "--interval", "100ms"]
    with serving(200) as server:
        environment = os.environ | {"HOOK": server.url, "XDG_STATE_HOME": str(tmp_path / "state")}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: server.heard)
            process.send_signal(number)
            _, said = process.communicate(timeout=WAIT)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, said
    assert "metrics at http://127.0.0.1:" in said
    assert "Traceback" not in said
    assert server.heard[0]["alerts"][0]["alert"] == "oldest"
    (memory,) = (tmp_path / "state" / "redelivery").glob("watch-*.json")
    assert [each["rule"] for each in json.loads(memory.read_text())["alerts"]["active"]] == ["oldest"]
