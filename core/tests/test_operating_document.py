"""docs/operating.md, then docs/monitoring.md: their commands run in their order and print what they show."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from redelivery import DeliverySpec, Message, Sink, Subscription, cli, places

ROOT = Path(__file__).resolve().parents[2]
URL = "sqlite:orders.db?queue=orders"
#: Commands that never end, change the machine, or need what tests have not: they are read by `cli.parser` at most.
NOT_RUN = ("pip ", "ssh ", "export ", "OTEL_SERVICE_NAME=", "redelivery ui", "redelivery watch orders payments")
#: What differs from run to run, in any output.
VARIES = (
    (re.compile(r"\b[0-9,]+ bytes"), "N bytes"),
    (re.compile(r" +[0-9]+[smhd] "), " AGE "),
    (re.compile(r"(?m)^/.*/(?=redelivery\.toml$)"), "/"),
    (re.compile(r"(?m) +$"), ""),
)


def shown(text: str) -> list[str]:
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return text.rstrip("\n").split("\n") if text.strip() else []


def matches(found: list[str], wanted: list[str]) -> bool:
    """Whether the lines are the same; a line `...` stands for any number of lines."""
    if "..." not in wanted:
        return found == wanted
    at = wanted.index("...")
    head, tail = wanted[:at], wanted[at + 1 :]
    return found[: len(head)] == head and any(matches(found[cut:], tail) for cut in range(at, len(found) + 1))


class Console:
    """The shell of the document: `cat` makes the file that it shows, `redelivery` runs in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._waits = iter(("PT30S", "PT0.2S"))  # the first run stops before
        self.ran = 0

    def __call__(self, example: Example) -> str | None:
        block = re.split(r"(?m)^\$ ", example.parsed)
        assert not block[0].strip(), "output without a command"
        for each in block[1:]:
            command, _, wanted = each.partition("\n")
            if command.startswith(NOT_RUN):
                continue
            name, *arguments = shlex.split(command)
            self.ran += 1
            if name == "cat":
                Path(arguments[0]).write_text(wanted, encoding="utf-8")
                continue
            assert name == "redelivery", command
            if "--waves" in arguments:
                arguments += ["--wave-wait", next(self._waits)]
            found = self.run(*arguments)
            assert matches(shown(found), shown(wanted)), f"{command}\n{found}"
        return None

    def run(self, *arguments: str) -> str:
        self._capsys.readouterr()
        assert cli.main(list(arguments)) < 2
        captured = self._capsys.readouterr()
        return captured.out + captured.err


@contextmanager
def consumer(*, failing: int) -> Iterator[None]:
    """The consumer of the orders, whose service is down for the first orders that were not edited."""
    failed = 0

    def bill(message: Message) -> None:
        nonlocal failed
        if failed < failing and not any(name == "mended-by" for name, _ in message.headers):
            failed += 1
            raise ConnectionError("stock service at 10.0.0.7:8443 does not answer, request 1")

    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
    subscription = Subscription(URL, bill, spec=spec, name="billing", breaker=None)
    thread = threading.Thread(target=subscription.run)
    thread.start()
    try:
        yield
    finally:
        subscription.stop()
        thread.join(30)
        assert not thread.is_alive()


def examples(language: str, evaluator: Callable[[Example], str | None] | None = None) -> list[Example]:
    parser = PythonCodeBlockParser() if evaluator is None else CodeBlockParser(language, evaluator)
    documents = [Sybil(parsers=[parser]).parse(ROOT / "docs" / name) for name in ("operating.md", "monitoring.md")]
    return [each for document in documents for each in document.examples()]


def test_the_commands_of_operating_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    Path("redelivery.toml").write_text(f'[places.orders]\nurl = "{URL}"\n', encoding="utf-8")
    console = Console(capsys)
    console.run("apply", "orders")
    made = [each for each in examples("python") if "def bill" in each.parsed]
    assert len(made) == 1, "the last section makes the letters"
    made[0].evaluate()
    blocks = examples("console", console)
    waves = next(at for at, each in enumerate(blocks) if "were sent in wave" in each.parsed)
    for each in blocks[:waves]:
        each.evaluate()
    with consumer(failing=1):
        blocks[waves].evaluate()
    for each in blocks[waves + 1 :]:
        each.evaluate()
    assert console.ran >= 14


def test_every_place_of_operating_can_be_read(tmp_path: Path) -> None:
    """Its tables of `redelivery.toml` have no key that is not known."""
    found = []

    def note(example: Example) -> None:
        file = tmp_path / f"{len(found)}.toml"
        file.write_text(example.parsed, encoding="utf-8")
        found.append(places.read(file))

    for each in examples("toml", note):
        each.evaluate()
    assert len(found) == 2
    assert all(found)
