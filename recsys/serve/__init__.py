"""HTTP service for saved models, and the page to explore a model."""

from __future__ import annotations

from typing import Any

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        try:
            from recsys.serve.app import create_app
        except ModuleNotFoundError as error:
            from recsys.messages import missing_extra

            raise ImportError(
                f"The service {missing_extra(str(error.name), 'serve')}"
            ) from error
        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
