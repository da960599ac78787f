"""Errors that lowrank raises: one tree, each also the builtin that fits."""

__all__ = ["ArgumentError", "ArgumentTypeError", "LowRankError"]


class LowRankError(Exception):
    """Base of all errors that lowrank raises on purpose."""


class ArgumentError(LowRankError, ValueError):
    """An argument has the right type and a wrong value."""


class ArgumentTypeError(LowRankError, TypeError):
    """An argument has the wrong type."""
