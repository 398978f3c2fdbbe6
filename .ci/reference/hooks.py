"""Hooks of mkdocs: the READMEs and the result pages join the reference, their links mended."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ".ci/reference/pages"
ALSO = ("README.md", "CHANGELOG.md", "bench/RESULTS.md", "bench/KERNELS.md")
PICTURES = ("bench/results/overview.svg",)
HOME = "index.md"
LINK = re.compile(r"(\]\()([^)#:]+)((?:#[^)]*)?\))")


def folder_readmes() -> list[str]:
    """The READMEs of folders that hold code."""
    paths = (path for top in ("tvdnn", "kernels", "bench", "tests") for path in readmes(top))
    return [path.relative_to(ROOT).as_posix() for path in paths]


def readmes(top: str) -> list[Path]:
    return sorted((ROOT / top).rglob("README.md"))


def site_name_of(path: str) -> str:
    """Where a file of the tree lies among the pages."""
    return HOME if path == "README.md" else path.removeprefix(f"{PAGES}/")


def path_of(page: str) -> str:
    """The file of the tree that a page was made of."""
    if page == HOME:
        return "README.md"
    return page if (ROOT / page).exists() else f"{PAGES}/{page}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    folders = [{posixpath.dirname(path): path} for path in folder_readmes()]
    results: list[Any] = ["bench/RESULTS.md", "bench/KERNELS.md", "CHANGELOG.md"]
    config.nav = [*(config.nav or []), {"Folders": folders}, {"Results": results}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in (*ALSO, *PICTURES, *folder_readmes()):
        source = str(ROOT / path)
        files.append(File.generated(config, site_name_of(path), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links between files of the tree as links between pages."""
    here = page.file.src_uri
    folder = posixpath.dirname(path_of(here))

    def mended(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        name = site_name_of(target)
        if files.get_file_from_path(name) is None:
            return link[0]  # mkdocs warns of it
        return link[1] + posixpath.relpath(name, posixpath.dirname(here) or ".") + link[3]

    return LINK.sub(mended, markdown)
