"""Errors that lowrank raises: one tree, each also the builtin that fits."""


class LowRankError(Exception):
    """Base of all errors that lowrank raises on purpose."""


class ArgumentError(LowRankError, ValueError):
    """An argument has the right type and a wrong value."""


class ArgumentTypeError(LowRankError, TypeError):
    """An argument has the wrong type."""


def missing_extra(library: str, extra: str) -> str:
    """Return the rest of a sentence about an optional library that is not installed.

    Examples
    --------
    >>> print("Plotting", missing_extra("matplotlib", "plot"))
    Plotting needs matplotlib; install it with pip install 'lowrank-recsys[plot]' (in a clone:
    pip install -e '.[plot]').
    """
    return (
        f"needs {library}; install it with pip install 'lowrank-recsys[{extra}]' "
        f"(in a clone: pip install -e '.[{extra}]')."
    )
