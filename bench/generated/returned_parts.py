"""Classes of objects that printed networks return."""

from collections.abc import Mapping
from typing import Final

RETURNED: Final[Mapping[str, str]] = {
    "Answer": '''
from dataclasses import dataclass


@dataclass
class Answer:
    """What a detector returns."""

    first: torch.Tensor
    others: list
    name: str = "maps"
''',
    "Slotted": '''
from dataclasses import dataclass


@dataclass(slots=True)
class Slotted:
    """Two maps, in slots."""

    first: torch.Tensor
    last: torch.Tensor
''',
    "Stated": '''
from dataclasses import dataclass


@dataclass
class Stated:
    """A map that is put away and taken back by the class itself."""

    first: torch.Tensor
    kind: type = torch.Tensor

    def __getstate__(self):
        return [self.first, self.kind]

    def __setstate__(self, state):
        self.first, self.kind = state
''',
    "Detected": '''
from typing import NamedTuple


class Detected(NamedTuple):
    """A map, and what is said of it."""

    maps: torch.Tensor
    count: int = 3
    name: str | None = None
''',
    "Outputs": '''
from collections import OrderedDict


class Outputs(OrderedDict):
    """Maps by name, which are attributes as well."""

    def __init__(self, **given):
        super().__init__(given)
        self.__dict__.update(given)
''',
    "Batch": '''
class Batch(list):
    """Maps with a name."""

    name = "none"

    def named(self, name):
        self.name = name
        return self
''',
    "Unknown": '''
class Unknown:
    """What is no container."""

    def __init__(self, first):
        self.first = first
''',
    "Fixed": '''
from dataclasses import dataclass


@dataclass
class Fixed:
    """A map that is not to be copied."""

    first: torch.Tensor

    def __reduce_ex__(self, protocol):
        raise TypeError("not to be copied")
''',
}
