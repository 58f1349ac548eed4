"""Shells complete the command: bash and fish are asked as the TAB key asks them, zsh where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from redelivery import cli

SHELLS = ("bash", "zsh", "fish", "tcsh")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell, as the command prints it."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        with (folder / shell).open("w", encoding="utf-8") as out, pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            assert cli.main(["completion", shell]) == 0
    return {shell: folder / shell for shell in SHELLS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with places, and with the files that a command could name."""
    places = "".join(
        f'[places.{name}]\nurl = "sqlite:{name}.db?queue=q"\n' for name in ("orders", "orders-eu", "bills")
    )
    (tmp_path / "redelivery.toml").write_text(places)
    (tmp_path / "spec.yaml").touch()
    (tmp_path / "$(touch harmed).yaml").touch()
    (tmp_path / "state").mkdir()
    return tmp_path


def completed(script: Path, folder: Path, *words: str) -> list[str]:
    """What TAB offers for the last of these words."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    ask = (
        f'redelivery() {{ "{sys.executable}" -m redelivery "$@"; }}\n'
        f"source '{script}'\n"
        'COMP_WORDS=(redelivery "$@"); COMP_CWORD=$#\n'
        # As TAB: by the function that `complete` registered.
        "$(complete -p redelivery | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        [bash, "--norc", "-c", ask, "bash", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return sorted(done.stdout.split("\n")[:-1])


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dead-l",), ["dead-letters"]),
        (("dead-letters", "re"), ["redrive", "remove"]),
        (("completion", "z"), ["zsh"]),
        (("watch", "--onc"), ["--once"]),
        (("dead-letters", "stats", "ord"), ["orders", "orders-eu"]),
        (("dead-letters", "redrive", "--dry-run", "--id", "x", "b"), ["bills"]),
        (("plan", "o"), ["orders", "orders-eu"]),
        (("ui", "orders", "b"), ["bills"]),
        (("watch", "orders", "bills", "orders-"), ["orders-eu"]),
        (("run", "orders", "a:b", "--spec", "s"), ["spec.yaml", "state"]),
        (("run", "orders", "a:b", "--spec", "$"), ["$(touch harmed).yaml"]),
        (("watch", "--state", "s"), ["state"]),
        (("dead-letters", "stats", "nothing-has-this-name"), [""]),
    ],
)
def test_bash_completes(scripts: dict[str, Path], folder: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(scripts["bash"], folder, *words) == offered
    assert not (folder / "harmed").exists()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(scripts: dict[str, Path], folder: Path) -> None:
    ask = f'function redelivery; "{sys.executable}" -m redelivery $argv; end; source {scripts["fish"]}; complete -C '
    for line, offered in {"dead-letters re": ["redrive", "remove"], "plan ord": ["orders", "orders-eu"]}.items():
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"{ask}'redelivery {line}'"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert sorted(each.partition("\t")[0] for each in done.stdout.splitlines()) == sorted(offered)


def test_a_file_of_places_that_is_wrong_disturbs_no_command_line(scripts: dict[str, Path], folder: Path) -> None:
    (folder / "redelivery.toml").write_text("[places.'$(touch harmed)']\nurl = 'sqlite:q.db?queue=q'\n")
    assert completed(scripts["bash"], folder, "dead-letters", "stats", "") == [""]
    assert not (folder / "harmed").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_command_and_asks_for_the_places(scripts: dict[str, Path], shell: str) -> None:
    script = scripts[shell].read_text(encoding="utf-8")
    assert [name for name in cli._COMMANDS if name not in script] == []
    assert "redelivery places --names" in script


@pytest.mark.parametrize("shell", [each for each in ("bash", "zsh", "fish") if shutil.which(each)])
def test_the_shell_can_read_its_script(scripts: dict[str, Path], shell: str) -> None:
    subprocess.run([shell, "-n", scripts[shell]], check=True, timeout=60)


def test_names_of_places_are_printed_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["places", "--names"]) == 0
    assert capsys.readouterr().out.split() == ["orders", "orders-eu", "bills"]


def test_without_its_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "redelivery: completion needs shtab: pip install 'redelivery-core[cli]'\n"
