"""Builds the site from the files where they live, so that a link works on the site as it does in the repository.

A page's source is its path in the repository. MkDocs itself would take pages from one folder only. This module gives it
those of the plugins, the examples and the root too, with a shorter address for each. A link to a folder leads to its
README, and one to a source file to a page that shows that file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs_jupyter.plugin import NotebookFile

ROOT = Path(__file__).resolve().parents[2]
#: Every document of the project. `core/tests/test_workspace.py` states that the navigation names each.
DOCUMENTS = (
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "docs/*/*.ipynb",
    "plugins/*/*.md",
    "plugins/*/*/README.md",
    "*/README.md",
    "examples/*/README.md",
)
#: Pictures, styles and files for other programs.
ASSETS = ("docs/images/*", "docs/site/*.css", "docs/site/*.js")
#: Decisions have an index, which this module makes; each of them would make the navigation too long.
DECISIONS = "docs/decisions"
INDEX = f"{DECISIONS}/README.md"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)|(?<=\]: )(?![a-z]+:|#)([^\s#]+)")
_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "bash"}


def documents() -> list[str]:
    """Return the paths of all pages with a source, relative to the repository."""
    found = {path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    return sorted(str(path.relative_to(ROOT)) for path in found if not path.parts[-2].startswith("."))


def address(path: str) -> str:
    """Return where a document is on the site: `plugins/kafka/README.md` is `brokers/kafka.html`."""
    stem = path.removesuffix(".md").removesuffix(".ipynb")
    short = re.sub(r"^docs/", "", stem)
    short = re.sub(r"^plugins/(\w+)/(.+)$", r"brokers/\1/\2", short)
    short = re.sub(r"^brokers/(\w+)/README$", r"brokers/\1", short)
    return ("index" if short == "README" else re.sub(r"(?i)/readme$", "/index", short).lower()) + ".html"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace the pages that MkDocs found in its one folder."""
    for file in [*files.documentation_pages(), *files.media_files(), *files.static_pages()]:
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in documents():
        found = File(path, str(ROOT), config.site_dir, use_directory_urls=False, dest_uri=address(path))
        if path.startswith(f"{DECISIONS}/"):
            found.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(found if path.endswith(".md") else _notebook(found, config))
    for pattern in ASSETS:
        for asset in sorted(ROOT.glob(pattern)):
            files.append(File(str(asset.relative_to(ROOT)), str(ROOT), config.site_dir, use_directory_urls=False))
    index = File.generated(config, INDEX, content=decisions())
    index.dest_uri = address(INDEX)
    files.append(index)
    for path in sorted({target for page in documents() for target in _sources(page)}):
        shown = File.generated(config, f"{path}.md", content=_shown(ROOT / path), inclusion=InclusionLevel.NOT_IN_NAV)
        shown.dest_uri = f"source/{path}.html"
        files.append(shown)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs gives them by name
    """Point links to folders and source files at their pages. Let the search show what users read first."""
    if re.search(r"/decisions/|/wire\.md$|^CHANGELOG|^docs/seeds", page.file.src_uri):
        page.meta.setdefault("search", {"boost": 0.3})
    folder = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda link: _target(folder, link[0]), markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - as above
    """Check that a page loads nothing from another host. Raises PluginError."""
    if found := _ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri}: the page loads something from another host: {found[0]}")
    return output


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the index of the search as a script too: pages that are opened from a folder cannot read JSON."""
    index = Path(config.site_dir, "search/search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def decisions() -> str:
    """Return the index of the decisions: the title of each, newest first."""
    lines = [
        "# Decisions",
        "",
        "Why things are as they are: one page for each choice that somebody may question, newest first.",
        "",
        "| number | decision |",
        "| --- | --- |",
    ]
    for path in sorted((ROOT / DECISIONS).glob("0*.md"), reverse=True):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(": ")
        lines.append(f"| {number} | [{title}]({path.name}) |")
    return "\n".join(lines) + "\n"


def _notebook(file: File, config: MkDocsConfig) -> File:
    """Return a notebook as a page: the plugin itself looks only at what MkDocs found in its one folder."""
    page: File = NotebookFile(file, **config)
    page.dest_uri = address(file.src_uri)
    page.abs_dest_path = posixpath.join(config.site_dir, page.dest_uri)
    page.url = page.dest_uri
    return page


def _target(folder: str, link: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, link))
    if path == DECISIONS:
        return f"{link.rstrip('/')}/README.md"
    if (ROOT / path / "README.md").is_file():
        return f"{link.rstrip('/')}/README.md"
    return f"{link.rstrip('/')}.md" if _is_source(path) else link


def _sources(document: str) -> Iterator[str]:
    """Return the files and folders of the repository that a document links to and that are no pages."""
    folder = posixpath.dirname(document)
    for link in _LINK.finditer((ROOT / document).read_text(encoding="utf-8")):
        path = posixpath.normpath(posixpath.join(folder, link[0]))
        if _is_source(path):
            yield path


def _is_source(path: str) -> bool:
    there = ROOT / path
    if there.is_dir():
        return path != DECISIONS and not (there / "README.md").is_file()
    return there.is_file() and there.suffix not in {".md", ".ipynb", ".png", ".svg"}


def _shown(path: Path) -> str:
    """Return a page that shows a file, or the names in a folder."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return head + "".join(f"- `{each.name}`\n" for each in sorted(path.iterdir()))
    return f"{head}`````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}`````\n"
