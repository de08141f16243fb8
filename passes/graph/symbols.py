"""Asks about sizes that may be symbols; what reasons about symbols is loaded when there is one."""

from torch import SymBool

__all__ = ["statically_known_true"]


def statically_known_true(found: bool | SymBool) -> bool:
    """Whether a comparison of sizes holds without a guard; False where only a run could tell."""
    if isinstance(found, bool):
        return found
    from torch.fx.experimental import symbolic_shapes  # noqa: PLC0415 - sympy takes half a second to load

    return symbolic_shapes.statically_known_true(found)
