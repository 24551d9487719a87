"""The hook of mkdocs.yml: the site is made of the documents as they lie in the repository, also those outside of docs/.

Here: the folder that mkdocs reads, the navigation, and links to files that are no pages: their text stays, the link goes. A link to a file that the
repository does not have stays, so `mkdocs build --strict` fails on it.
"""

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "site-source"
OUTSIDE = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "schemas/index/FORMAT.md")
SECTIONS = {"Reference": "docs/reference", "How-to guides": "docs/how-to", "Decisions": "docs/decisions"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|`[^`]*`)+)\]\(([^)\s#:]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Copy the documents, and list them for the navigation."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__", "benchmarks", "data"))
    for name in OUTSIDE:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, SOURCE / name)
    listed = {f"docs/{path.name}" for path in (SOURCE / "docs").glob("*.md")}
    config.docs_dir = str(SOURCE)
    config.nav = [
        *OUTSIDE[:2],
        *({title: _pages(folder)} for title, folder in SECTIONS.items()),
        {"Documents": [*OUTSIDE[2:], *sorted(listed)]},
    ]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page without its links to files that are no part of the site."""
    folder = Path(page.file.src_uri).parent

    def unlinked(link: re.Match[str]) -> str:
        is_there_only = (ROOT / folder / link[2]).exists() and not (SOURCE / folder / link[2]).is_file()
        return link[1] if is_there_only else link[0]

    return LINK.sub(unlinked, markdown)


def _pages(folder: str) -> list[str]:
    names = sorted(path.name for path in (SOURCE / folder).glob("*.md"))
    first = [name for name in names if name in ("README.md", "index.md")]
    return [f"{folder}/{name}" for name in (*first, *(name for name in names if name not in first))]
