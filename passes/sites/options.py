"""What a stored weight can be here for, and the option that sets how many ranks share weights of one role."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

ROLE_TITLES = {
    "oproj": "attention output projection",
    "mlp": "MLP",
    "lmhead": "LM head",
    "embedding": "embedding",
}
"""The roles, each with its name in messages."""


class HasRole(Protocol):
    """A site, or a near miss."""

    @property
    def role(self) -> str:
        """What its weight is here for."""


_Item = TypeVar("_Item", bound=HasRole)


def of_role(items: Iterable[_Item], role: str) -> list[_Item]:
    """Those of one role."""
    return [item for item in items if item.role == role]


def size_option(role: str) -> str:
    """The option that sets the size of the groups which share a role's weights, in vllm-ascend's spelling."""
    return f"{role}_tensor_parallel_size"
