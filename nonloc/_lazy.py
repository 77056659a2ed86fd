"""Lazy public names (PEP 562): a package lists its names by hand and imports a module on first use.

`nonloc --help` and reading results must not import torch, which takes seconds; this is what keeps the
packages cheap to import without hiding imports inside functions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def modules_by_name(modules: Mapping[str, str]) -> dict[str, str]:
    """Return {name: module} of {module: "name name …"}, in the same order."""
    return {name: module for module, names in modules.items() for name in names.split()}


def lazy(
    package: str, where: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return (`__getattr__`, `__dir__`) for `package`; `where` maps each public name to its module.

    moved  names that used to be here, and where they are now
    """

    def getattr_(name: str) -> Any:
        if moved and name in moved:
            raise AttributeError(f"{package}.{name} is now {moved[name]}.{name}; import it from there")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(where[name], package), name)

    def dir_() -> list[str]:
        return sorted(where)

    class LazyPackage(ModuleType):
        """Importing a file sets the package's attribute of that name; where a public name is spelled like its
        file (`nn.insert`, `networks.build`), the public name wins."""

        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in where and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = LazyPackage
    return getattr_, dir_
