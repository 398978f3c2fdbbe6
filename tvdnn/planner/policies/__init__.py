"""Policies: all ways to plan, by name. A new one is a module here and a line below."""

from collections.abc import Mapping
from typing import Final

from ...errors import InputError
from ..problem import Policy
from . import auto, gist, keep, superneurons, tvdnn, vdnn

POLICIES: Final[Mapping[str, Policy]] = {
    policy.name: policy
    for policy in (
        *keep.POLICIES,
        *vdnn.POLICIES,
        *superneurons.POLICIES,
        *tvdnn.POLICIES,
        *gist.POLICIES,
        *auto.POLICIES,
    )
}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises InputError for one that is not known."""
    if name not in POLICIES:
        found = gist.with_density(name)
        if found is not None:
            return found
        raise InputError(f"policy {name!r} is not known; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]
