"""Remote files: copies of what is at a URL, through fsspec."""

from __future__ import annotations

import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from recsys.errors import DataError
from recsys.messages import missing_extra, redacted
from recsys.readers.archives import Scratch

__all__ = ["download"]

_PATIENCE = 10  # seconds to wait for a server, and for the next bytes from it
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_DATABASES = ("mysql", "mariadb", "mssql", "oracle", "mongodb", "redis", "snowflake", "bigquery")


def download(url: str, scratch: Scratch) -> list[tuple[str, Path]]:
    """Copy the files at a URL, and return their names with the paths of the copies.

    A folder (``s3://lake/events/``) or pattern (``s3://lake/events/*.parquet``) may have several
    files; the web (``https://``) has none of them.

    Raises
    ------
    DataError
        If there is nothing at the URL, its server cannot be reached, or the package that reads such
        URLs is not installed. The message has no password and no query string.
    """
    scheme, shown = url.partition("://")[0].lower(), redacted(url.partition("?")[0])
    if scheme.partition("+")[0] in _DATABASES:
        raise DataError(
            f"{scheme}:// databases are not read; PostgreSQL, SQLite and DuckDB are, and files "
            "that others export."
        )
    try:
        fsspec: Any = import_module("fsspec")
        system, path = fsspec.core.url_to_fs(url, **_settings(scheme))
        files = []
        for each in [path] if scheme in ("http", "https") else _data_files(system, path):
            target = scratch.new()
            system.get_file(each, str(target))
            files.append((each.partition("?")[0].rpartition("/")[2] or shown, target))
    except ImportError as error:
        needed = missing_extra(error.name or "fsspec", "remote")
        if scheme in _PACKAGES:
            needed = f"needs {_PACKAGES[scheme]}; install it with pip install {_PACKAGES[scheme]}."
        raise DataError(f"{scheme}:// {needed}") from None
    except FileNotFoundError:
        files = []
    except Exception as error:
        if "not known" in str(error):  # the scheme, to fsspec
            raise DataError(f"{scheme}:// is not a kind of address that can be read.") from None
        reason = redacted(str(error).partition("\n")[0]) or type(error).__name__
        raise DataError(f"{shown} cannot be read: {reason.rstrip('.')}.") from None
    if not files:
        raise DataError(f"There is nothing at {shown}.")
    return files


def _data_files(system: Any, path: str) -> list[str]:
    """Return the files of a folder or pattern; hidden ones, and marks such as _SUCCESS, are not."""
    found = [path]
    if glob.has_magic(path):
        found = system.glob(path)
    elif system.isdir(path):
        found = system.find(path)
    return sorted(each for each in found if not each.rpartition("/")[2].startswith(("_", ".")))


def _settings(scheme: str) -> dict[str, Any]:
    """Return the settings of a file system: a limit on waiting, where there is one to set."""
    if scheme not in ("http", "https"):
        return {}
    aiohttp: Any = import_module("aiohttp")
    limit = aiohttp.ClientTimeout(total=None, sock_connect=_PATIENCE, sock_read=_PATIENCE)
    return {"client_kwargs": {"timeout": limit}}
