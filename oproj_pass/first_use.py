"""Names of a package that load on first use, so that importing the package loads nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["names_on_first_use"]


def names_on_first_use(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package (PEP 562): each name with the module, below it, that
    defines it.

    No name may be a module's own: once that is loaded, the package's attribute is the module.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load, lambda: sorted(modules)
