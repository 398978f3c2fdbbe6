"""Check the built reference: every link of every page leads to a file, and to a place in it.

python .ci/reference/links.py
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).parent / "site"


class Links(HTMLParser):
    """The targets of a page's links, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.places.add(value)


def broken(pages: dict[Path, Links]) -> Iterator[str]:
    """A line for each link that leads nowhere. Links to other sites are not followed."""
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            place = unquote(parts.fragment)
            if not file.exists() or (file in pages and place not in pages[file].places):
                yield f"{path.relative_to(SITE)}: {target}"


def main() -> None:
    pages = {path: Links(path.read_text()) for path in sorted(SITE.rglob("*.html"))}
    if not pages:
        sys.exit(f"there is no page in {SITE}; run mkdocs build first")
    found = list(broken(pages))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(pages)} pages, {len(found)} broken links")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
