"""The choice between the compiled kernels and those in NumPy, and the memory of the machine."""

from __future__ import annotations

import os
import re
from importlib import import_module
from types import FunctionType, ModuleType
from typing import NamedTuple

from lowrank.kernels import reference

try:
    _core: ModuleType | None = import_module("lowrank.kernels._core")
except ImportError:
    _core = None


class Backend(NamedTuple):
    """Name of the active kernels: ``compiled`` or ``reference``, and their instruction set."""

    name: str
    instruction_set: str | None

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.instruction_set})"
            if self.instruction_set
            else self.name
        )


active: ModuleType = _core or reference
"""Module of the active kernels; `use` replaces it."""


def supported() -> list[str]:
    """Return the kernels this machine can run, best last."""
    return ["reference", *(_core.supported() if _core else [])]


def use(name: str) -> None:
    """Choose the kernels by name, for the whole process.

    Raises
    ------
    ValueError
        If this machine or this installation does not support them.
    """
    global active
    if name not in supported():
        raise ValueError(
            f"kernels must be one of {', '.join(supported())}; got {name!r}."
        )
    active = reference
    if name != "reference" and _core is not None:
        # The instruction set is a state of the extension.
        _core.use(name)
        active = _core


def backend() -> Backend:
    """Return the active kernels."""
    is_compiled = _core is not None and active is _core
    return (
        Backend("compiled", active.active())
        if is_compiled
        else Backend("reference", None)
    )


def check_same(core: ModuleType) -> None:
    """Check that the compiled kernels take the same arguments as those in NumPy.

    Raises
    ------
    ImportError
        If they do not, because they were compiled from other sources.
    """
    for name, function in vars(reference).items():
        if name.startswith("_"):
            continue
        if (
            isinstance(function, FunctionType)
            and function.__module__ == reference.__name__
        ):
            code, signature = function.__code__, getattr(core, name, core).__doc__ or ""
            parameters = re.findall(r"[(,] ?(\w+): ", signature.partition("\n")[0])
            if not hasattr(core, name) or parameters != list(
                code.co_varnames[: code.co_argcount]
            ):
                raise ImportError(
                    "The compiled kernels are older or newer than the Python code next to them "
                    f"({name} differs); install the package again: `pip install --editable .`."
                )


def physical_memory() -> int | None:
    """Return the memory of this machine in bytes, None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # win32 has no sysconf
        return None


if _core is not None:
    check_same(_core)
if choice := os.environ.get("LOWRANK_KERNELS"):
    use(choice)
