"""`redelivery ui`: its arguments, where it is served, what it prints, and how it ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ui_page import bury

from redelivery import cli
from redelivery.cli import ui as command
from redelivery.contract.message import Message
from redelivery.ui import server


@contextmanager
def started(*arguments: str, folder: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command; return the process and the URL that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "redelivery", "ui", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONUNBUFFERED": "1",
            "DISPLAY": "",
            **variables,
        },
    )
    assert process.stdout
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stdout.read()
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def get(url: str, cookie: str = "") -> tuple[int, str, str]:
    """Return status, cookie and text of an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=60)
    try:
        connection.request("GET", f"{parts.path or '/'}?{parts.query}", headers={"cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        return answer.status, (answer.getheader("set-cookie") or "").partition(";")[0], answer.read().decode()
    finally:
        connection.close()


def test_it_serves_this_machine_alone_prints_a_url_that_works_once_and_ends_by_ctrl_c(tmp_path: Path, url: str) -> None:
    bury(url, Message(id="one", value=b"{}"))
    config = tmp_path / "redelivery.toml"
    config.write_text(f'[places.orders]\nurl = "{url}"\n')
    below = tmp_path / "below"
    below.mkdir()
    with started("--no-browser", folder=below) as (process, start):
        parts = urlsplit(start)
        assert parts.hostname == "127.0.0.1"
        with pytest.raises(OSError, match=r"refused|unreachable"):
            socket.create_connection(("127.0.0.2", parts.port or 0), timeout=5).close()
        home = f"http://127.0.0.1:{parts.port}/"
        assert get(home)[0] == 401
        status, cookie, _ = get(start)
        assert status == 200
        assert get(start)[0] == 403
        status, _, text = get(home, cookie)
        assert status == 200
        assert ">orders</a>" in text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout
        rest = process.stdout.read()
        assert parts.query.partition("=")[2] not in rest
        assert rest.splitlines() == ["Ctrl-C ends the page."]


def test_other_users_and_an_export_under_way_write_nothing_to_the_terminal(tmp_path: Path, url: str) -> None:
    bury(url, *(Message(id=f"o-{number}", value=b"x" * 1_000_000) for number in range(12)))
    with started("--no-browser", url, folder=tmp_path) as (process, start):
        port = urlsplit(start).port or 0
        _, cookie, _ = get(start)
        ends = time.monotonic() + 30
        while 'aria-busy="true"' in (home := get(f"http://127.0.0.1:{port}/", cookie)[2]):
            assert time.monotonic() < ends
            time.sleep(0.05)  # another process looks
        place = re.findall(r'href="/places/([^"]+)"', home)[0]
        letters = get(f"http://127.0.0.1:{port}/places/{place}/letters", cookie)[2]
        token = re.findall(r'name="csrf" value="([^"]+)"', letters)[0]
        form = f"csrf={token}"
        lines = [
            f"POST /places/{place}/export HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Origin: http://127.0.0.1:{port}",
            f"Cookie: {cookie}",
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(form)}",
        ]
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as slow,
            socket.create_connection(("127.0.0.1", port), timeout=30) as wrong,
        ):
            wrong.sendall(b"no HTTP\r\n\r\n")
            assert wrong.recv(100).startswith(b"HTTP/1.1 400")
            slow.sendall("\r\n".join([*lines, "", form]).encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert process.stdout
        assert process.stdout.read().splitlines() == ["Ctrl-C ends the page."]


def test_a_port_that_is_in_use_is_one_line(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["ui", url, "--no-browser", "--port", str(port)]) == 2
    assert (
        capsys.readouterr().err
        == f"redelivery: --port {port}: Address already in use; name another one, or 0 for any\n"
    )
    assert cli.main(["ui", url, "--no-browser", "--port", "70000"]) == 2
    assert "it is not a port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no such place: 'nowhere'"),
        (["amqp://user:hunter2hunter2@host/q"], "hunter2"),
        (["sqlite:x.db?queue=q", "--allow", "redrive,delete"], "--allow 'delete'"),
        (["sqlite:x.db?queue=q", "--mask", "("], "--mask: '('"),
        (["--config", "nothing.toml"], "nothing.toml"),
        ([], "no place: name a destination's URL"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDELIVERY_CONFIG", raising=False)
    assert cli.main(["ui", *arguments, "--no-browser"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert (said in line) != (said == "hunter2")


def test_without_the_extra_the_line_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert cli.main(["ui", url]) == 2
    assert capsys.readouterr().err == "redelivery: the page needs uvicorn: pip install 'redelivery[ui]'\n"


def test_a_browser_is_opened_by_a_file_of_ours_as_arguments_are_seen_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(server.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    path = server._open("http://127.0.0.1:1/start?token=secret&x")
    assert path
    assert opened == [path.as_uri()]
    assert "secret" not in opened[0]
    assert path.stat().st_mode & 0o777 == 0o600
    assert "token=secret&amp;x" in path.read_text()


def test_a_machine_without_a_screen_opens_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not server._has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    assert server._has_screen()


def test_what_the_page_needs_is_in_its_package() -> None:
    folder = Path(server.__file__).parent
    licence = (folder / "static/htmx/LICENSE").read_text(encoding="utf-8")
    assert licence.startswith("Zero-Clause BSD")
    base = (folder / "templates/base.html").read_text(encoding="utf-8")
    for path in re.findall(r'(?:src|href)="/static/([^"]+)"', base):
        assert (folder / "static" / path).is_file(), path
