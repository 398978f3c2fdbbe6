"""What a kernel loads from memory that it stored to, in Triton's intermediate code.

Threads of a program see each other's stores only behind a barrier. A load needs none where it has
the layout of the store, as each thread then loads what it stored itself. Triton chooses layouts by
what it knows of sizes and addresses, so that a kernel may be right for most sizes alone.
"""

import re
from collections.abc import Iterator
from typing import Final

STORE: Final = re.compile(r"tt\.store (%[\w#]+),")
LOAD: Final = re.compile(r"%\w+ = tt\.load (%[\w#]+)\b")
MADE: Final = re.compile(r"(%\w+)(?::\d+)? = [\w.]+ (%[\w#]+)")  # pointers come first
LOOP: Final = re.compile(r"(?:(%\w+)(?::\d+)? = )?scf\.(?:for|while) ")
CARRIED: Final = re.compile(r"(%\w+) = (%[\w#]+)")
PLACE: Final = re.compile(r" loc\(.*$")
BARRIER: Final = re.compile(r"(ttg|gpu)\.\w*barrier\b")


def early_read_backs(code: str) -> int:
    """How many loads may come before another thread's store to the same argument.

    Loops are followed twice, both sides of a branch one behind the other.
    """
    origin: dict[str, str] = {}  # of a value, the one that it was made of
    stored: dict[str, set[str]] = {}  # by argument, the layouts of stores since the last barrier
    early = 0
    for instruction in _twice_around([PLACE.sub("", line.strip()) for line in code.splitlines()]):
        layout = instruction.rpartition(" : ")[2]
        if loop := LOOP.match(instruction):
            for place, (inner, initial) in enumerate(CARRIED.findall(_carried(instruction))):
                origin[inner] = origin[f"{loop[1]}#{place}"] = initial
                origin[str(loop[1])] = initial  # of a loop that carries one value
        elif store := STORE.match(instruction):
            stored.setdefault(_argument(store[1], origin), set()).add(layout)
        elif load := LOAD.match(instruction):
            early += bool(stored.get(_argument(load[1], origin), set()) - {layout})
        elif BARRIER.match(instruction):
            stored.clear()
        elif made := MADE.match(instruction):
            origin[made[1]] = made[2]
    return early


def _carried(loop: str) -> str:
    """What a loop says of the values that it carries."""
    return loop.partition(" iter_args")[2] or loop.partition("scf.while")[2]


def _twice_around(instructions: list[str]) -> Iterator[str]:
    """The instructions, those of a loop's body two times."""
    place = 0
    while place < len(instructions):
        yield instructions[place]
        if LOOP.match(instructions[place]):
            end = _end_of_block(instructions, place)
            body = instructions[place + 1 : end]
            yield from _twice_around(body)
            yield from _twice_around(body)
            place = end
        else:
            place += 1


def _end_of_block(instructions: list[str], begin: int) -> int:
    """The place of the line that closes the block that line `begin` opens."""
    depth = 0
    for place in range(begin, len(instructions)):
        depth += instructions[place].endswith("{") - instructions[place].startswith("}")
        if depth == 0:
            return place
    return len(instructions)


def _argument(value: str, origin: dict[str, str]) -> str:
    """The kernel's argument that an address was made of."""
    while value in origin:
        value = origin[value]
    return value
