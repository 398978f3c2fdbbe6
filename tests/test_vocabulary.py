"""One word for one thing: no name has a banned word in it, and no class name is used twice."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
RULE = re.compile(r"(\S+): (\w+) -> (.+)")


class Ban(NamedTuple):
    """A word that no name in a folder or file may hold, and the word to use there."""

    scope: str
    word: str
    instead: str


def bans() -> list[Ban]:
    lines = (ROOT / "tests" / "banned_names.txt").read_text().splitlines()
    rules = [RULE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(rules), lines
    return [Ban(*rule.groups()) for rule in rules if rule]


def words_of(name: str) -> set[str]:
    """The words of a name in snake case or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def names_in(source: str) -> Iterator[str]:
    """The names of all classes, functions and parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            yield node.name
        if isinstance(node, ast.arg):
            yield node.arg


def files_in(scope: str) -> list[Path]:
    place = ROOT / scope
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


@cache
def named_words(source: str) -> dict[str, set[str]]:
    """The words of each name."""
    return {name: words_of(name) for name in names_in(source)}


def found_in(source: str, banned: Ban) -> set[str]:
    return {name for name, words in named_words(source).items() if banned.word in words}


def test_no_name_holds_a_banned_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}: say {ban.instead}"
        for ban in bans()
        for path in files_in(ban.scope)
        for name in {*found_in(path.read_text(), ban), *({path.stem} & {ban.word})}
    ]
    assert not found


def test_every_ban_has_files() -> None:
    assert [ban.scope for ban in bans() if not files_in(ban.scope)] == []


def test_a_banned_word_is_found_in_names_of_all_kinds() -> None:
    ban = Ban("", "stay", "residency")
    source = "class StayOf: ...\ndef of_stay(stay, staying): ...\nstay = lambda x_stay: 0"
    assert found_in(source, ban) == {"StayOf", "of_stay", "stay", "x_stay"}


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(set)
    for folder in ("tvdnn", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
