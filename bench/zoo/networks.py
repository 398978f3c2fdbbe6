"""The networks of the zoo, as networks.json lists them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LIST: Final = Path(__file__).with_name("networks.json")
CLASSES: Final = {"classification": 1000, "segmentation": 21}
# The factors of the losses of networks that have auxiliary outputs, as their papers give them.
WEIGHTS: Final = {"googlenet": (1.0, 0.3, 0.3), "inception_v3": (1.0, 0.4)}


@dataclass(frozen=True, slots=True)
class ZooNetwork:
    """A network of a library, with the batch and the images on which it trains."""

    net: str
    library: str
    family: str
    batch: int
    side: int  # rows and columns of an image
    task: str

    @property
    def classes(self) -> int:
        return CLASSES[self.task]

    @property
    def per_pixel(self) -> bool:
        """Whether targets are classes of pixels, not of images."""
        return self.task == "segmentation"

    @property
    def loss_weights(self) -> tuple[float, ...]:
        return WEIGHTS.get(self.net, (1.0,))

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.batch, *([self.side] * 2 if self.per_pixel else []))


def _listed() -> Any:
    return json.loads(LIST.read_text())


NETWORKS: Final = tuple(ZooNetwork(**each) for each in _listed()["networks"])
ANCHORS: Final[Sequence[str]] = tuple(_listed()["anchors"])
NAMES: Final = tuple(each.net for each in NETWORKS)


def network_named(name: str) -> ZooNetwork:
    return NETWORKS[NAMES.index(name)]
