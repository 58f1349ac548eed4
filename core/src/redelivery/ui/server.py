"""Serves the page on this machine's own address, and opens the browser at its start URL."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

import uvicorn

from redelivery.base.files import open_private
from redelivery.errors import ConfigurationError
from redelivery.ui.app import application
from redelivery.ui.page import Settings
from redelivery.ui.safety import START

#: The only address. The page has the rights of who started it, so no other host gets to see it.
ADDRESS: Final = "127.0.0.1"
#: Requests at a time; each may hold a thread.
_CONCURRENCY: Final = 100
_LEAVE: Final = 3


def serve(settings: Settings, *, port: int = 0, browser: bool = True, say: Callable[[str], None] = print) -> None:
    """Serve the page until it is interrupted.

    Args:
        settings: what the page is started with.
        port: of this machine; 0: any free one.
        browser: open a browser at the start URL, where this machine has a screen.
        say: prints one line.

    Raises:
        ConfigurationError: a setting is wrong, or the port is in use.
    """
    bound = _bound(port)
    with bound:
        number = int(bound.getsockname()[1])
        app, page = application(settings, number)
        start = f"http://{ADDRESS}:{number}{START}?token={page.session.token}"
        # Anybody on this host can have it warn of their requests. `Safety` says what fails in the page; what is left
        # is a trace for each answer that was under way when the page ended.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,  # its lines would hold the token
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_CONCURRENCY,
                timeout_graceful_shutdown=_LEAVE,
            )
        )
        say(f"Open this URL; it works once, in one browser: {start}")
        say("Ctrl-C ends the page.")
        opened = _open(start) if browser and _has_screen() else None
        try:
            with suppress(KeyboardInterrupt):  # the person is done
                server.run(sockets=[bound])
        finally:
            if opened is not None:
                opened.unlink(missing_ok=True)


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((ADDRESS, port))
        bound.listen()  # a browser that opens the URL at once waits, and is not refused
    except (OSError, OverflowError) as error:
        bound.close()
        why = error.strerror if isinstance(error, OSError) else "it is not a port"
        raise ConfigurationError(f"--port {port}: {why}; name another one, or 0 for any") from error
    return bound


def _has_screen() -> bool:
    """Whether a browser has a screen here: one that runs in the terminal would take it."""
    return sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(start: str) -> Path | None:
    """Open a browser by a file of ours that leads on: other users of this host see the arguments of its process."""
    path = Path(tempfile.gettempdir()) / f"redelivery-{os.urandom(8).hex()}.html"
    try:
        with os.fdopen(open_private(path), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(start)}">')
        webbrowser.open(path.as_uri())
    except (OSError, webbrowser.Error):
        path.unlink(missing_ok=True)
        return None
    return path
