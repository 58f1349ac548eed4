"""The page shows what is in these files, and its command does what it says."""

import fnmatch
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
TUTORIAL = HERE.parent.parent / "docs" / "adding_a_network_broker.md"
TEXT = TUTORIAL.read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer(TEXT)]
EXCERPTS = [(path, code) for language, path, code in BLOCKS if language != "console"]
COMMANDS = [code for language, _, code in BLOCKS if language == "console"]


def test_every_block_was_found():
    assert len(BLOCKS) * 2 == TEXT.count("```")
    assert len(EXCERPTS) >= 15
    assert len(COMMANDS) == 1


@pytest.mark.parametrize(("path", "code"), EXCERPTS, ids=[str(path) for path, _ in EXCERPTS])
def test_an_excerpt_is_in_the_file_that_it_names(path, code):
    assert path is not None, f"this block names no file:\n{code}"
    assert "\n" + code in "\n" + (HERE / path).read_text(encoding="utf-8"), f"{path} does not hold:\n{code}"


@pytest.mark.parametrize("code", COMMANDS, ids=[code.partition("\n")[0] for code in COMMANDS])
def test_a_command_prints_what_is_shown(code):
    command, _, shown = code.removeprefix("$ ").partition("\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        shlex.split(command), cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pattern = "\n".join("*" if line == "..." else line.replace("...", "*") for line in shown.splitlines())
    assert fnmatch.fnmatchcase(done.stdout.rstrip("\n"), pattern), done.stdout


def test_every_link_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (TUTORIAL.parent / link).exists()] == []
