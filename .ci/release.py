"""Makes a release: distributions that can be built again to the same bytes, with their hashes, origin and parts.

    python .ci/release.py OUT [--draft] [--upload REPOSITORY]

`nox -s release` runs it with the packages of the group `release`, and with an environment for the SBOM. It refuses a
tree with changes, and a version that CHANGELOG.md does not have. `--draft` makes everything in spite of that, and
uploads nothing. Nothing is uploaded without `--upload`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributions import ROOT, Distribution, Refused, build, check, distributions, unpack


def refusals(version: str, changes: str, changelog: str, urls: object, *, upload: bool) -> list[str]:
    """Return why a release may not be made.

    Args:
        version: of the distributions.
        changes: what `git status --porcelain` prints.
        changelog: the text of CHANGELOG.md.
        urls: the table `[project.urls]` of the root.
        upload: whether it is uploaded.
    """
    found = []
    if changes:
        found.append("the tree has changes that are not committed: commit them, or remove them")
    if f"\n## [{version}]" not in changelog:
        found.append(f"CHANGELOG.md has no entry of {version}: name it ## [{version}], with its date")
    if upload and not urls:
        found.append("no distribution says where its source is: add [project.urls] to every pyproject.toml")
    return found


def provenance(files: list[Path], commit: str, began: datetime, ended: datetime) -> dict[str, Any]:
    """Return an in-toto statement (SLSA provenance v1) about files: which commit, which pins and which builder."""
    run = os.environ.get("GITHUB_RUN_ID")
    server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    source = f"git+{server}/{repository}" if run else "git+file:redelivery"
    pins = {"uri": "file:constraints.txt", "digest": {"sha256": _sha256(ROOT / "constraints.txt")}}
    metadata = {"startedOn": _time(began), "finishedOn": _time(ended)}
    if run:
        metadata["invocationId"] = f"{server}/{repository}/actions/runs/{run}"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:redelivery:nox-release:v1",
                "externalParameters": {"command": "nox -s release"},
                "resolvedDependencies": [{"uri": source, "digest": {"gitCommit": commit}}, pins],
            },
            "runDetails": {
                "builder": {"id": f"{server}/{os.environ['GITHUB_WORKFLOW_REF']}" if run else "urn:redelivery:local"},
                "metadata": metadata,
            },
        },
    }


def attest(files: list[Path]) -> bool:
    """Sign an attestation (PEP 740) beside each file. Return False without an identity: nothing is signed."""
    from sigstore.oidc import detect_credential  # noqa: PLC0415 - the tests need no signing

    if detect_credential() is None:  # asked first: the command would open a browser
        return False
    _run("-m", "pypi_attestations", "sign", *map(str, files))
    return True


def make(out: Path, sbom_python: str, *, draft: bool, upload: str | None) -> None:
    """Make the release in a folder, which is empty. Raises Refused, subprocess.CalledProcessError."""
    began = datetime.now(UTC)
    found = distributions()
    version = found[0].project["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    urls = found[0].project.get("urls")
    wrong = refusals(version, _git("status", "--porcelain"), changelog, urls, upload=bool(upload))
    if wrong and (upload or not draft):
        raise Refused("; ".join(wrong))
    for each in wrong:
        print(f"release: a draft, as {each}")
    commit = _git("rev-parse", "HEAD")
    os.environ["SOURCE_DATE_EPOCH"] = _git("log", "-1", "--format=%ct")
    _build_twice(commit, out)
    files = sorted(out.iterdir())
    _run("-m", "twine", "check", "--strict", *map(str, files))
    sbom = out / f"redelivery-{version}.cdx.json"
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", "--output-reproducible"]
    _run("-m", "cyclonedx_py", "environment", *options, "--output-file", str(sbom), sbom_python)
    statement = provenance([*files, sbom], commit, began, datetime.now(UTC))
    told = out / f"redelivery-{version}.intoto.json"
    told.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
    signed = not draft and attest(files)
    all_files = sorted(out.iterdir())
    sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in all_files)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(f"release: {len(files)} files of version {version}, commit {commit[:12]}, in {out}")
    if signed:
        print("release: signed: one attestation (PEP 740) beside each file")
    else:
        print(
            f"release: NOT SIGNED: a draft, or no identity (OIDC) is here; {told.name} is a statement without signature"
        )
    if upload:
        options = ["--attestations"] if signed else []
        uploaded = [path for path in all_files if path in files or path.name.endswith(".attestation")]
        _run("-m", "twine", "upload", "--repository", upload, *options, *map(str, uploaded))


def _build_twice(commit: str, out: Path) -> None:
    """Build from two exports of a commit, in different folders. Raises Refused: the bytes differ."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for folder, target in ((Path(first), out), (Path(second), Path(second) / "dist")):
            export = folder / "tree.tar"
            subprocess.run(["git", "-C", str(ROOT), "archive", "--output", str(export), commit], check=True)
            unpack(export, folder / "tree")
            found = distributions(folder / "tree")
            build(found, target)
            check(found, target)
        _same(found, out, target)


def _same(found: list[Distribution], one: Path, other: Path) -> None:
    names = [path.name for each in found for path in (each.wheel(one), each.sdist(one))]
    if differ := [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]:
        raise Refused(f"built twice, these differ: {', '.join(differ)}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)


def main() -> int:
    """Make a release. Return the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s release --")
    parser.add_argument("out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("sbom_python", help=argparse.SUPPRESS)
    parser.add_argument("--draft", action="store_true", help="make it in spite of refusals; it is never uploaded")
    parser.add_argument("--upload", metavar="REPOSITORY", help="upload to this repository, as twine names it")
    asked = parser.parse_args()
    if asked.draft and asked.upload:
        parser.error("a draft is not uploaded")
    try:
        make(asked.out, asked.sbom_python, draft=asked.draft, upload=asked.upload)
    except (Refused, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
