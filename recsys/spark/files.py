"""Folders on whatever file system Spark can reach, and outputs that appear complete or not at all.

Everything goes through Hadoop's FileSystem in the driver's Java process, so that local paths,
``hdfs://`` and ``s3a://`` are the same here. On object stores a rename is a copy: the result is
complete when its last file, the manifest, is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from recsys.errors import ModelFileError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Place", "staged", "written"]

_WITH_FOLDERS = ("file", "hdfs", "viewfs")


class Place:
    """A file or folder by its path or URI.

    Parameters
    ----------
    spark : SparkSession
    path : str
        Without a scheme, a path of the file system that is the cluster's default: the local one,
        unless the cluster says otherwise.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        given = jvm.org.apache.hadoop.fs.Path(str(path))
        self._files = given.getFileSystem(spark._jsc.hadoopConfiguration())
        self._path = self._files.makeQualified(given)

    @property
    def uri(self) -> str:
        """The full URI, which Spark reads and writes."""
        return str(self._path.toString())

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self._path.getName())

    def child(self, name: str) -> Place:
        """Return the place `name` within this folder."""
        return Place(self._spark, f"{self.uri}/{name}")

    def sibling(self, name: str) -> Place:
        """Return the place `name` beside this one."""
        return Place(self._spark, f"{self._path.getParent().toString()}/{name}")

    @property
    def parent_exists(self) -> bool:
        """Whether there is a folder to be put in; object stores have no folders to ask for."""
        if self.uri.partition(":")[0] not in _WITH_FOLDERS:
            return True
        return bool(self._files.exists(self._path.getParent()))

    def exists(self) -> bool:
        """Whether something is here."""
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        """Whether a folder is here."""
        return self.exists() and bool(self._files.getFileStatus(self._path).isDirectory())

    def names(self) -> list[str]:
        """Return the names of what is in the folder, sorted."""
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._path))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all files below, hidden ones left out, by path within the folder."""
        found, root = {}, len(self.uri) + 1
        each = self._files.listFiles(self._path, True)
        while each.hasNext():
            status = each.next()
            name = str(status.getPath().toString())[root:]
            if not any(part.startswith((".", "_")) for part in name.split("/")):
                found[name] = int(status.getLen())
        return dict(sorted(found.items()))

    def read_text(self) -> str:
        """Return the contents of a text file."""
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, text: str) -> None:
        """Write a new text file."""
        stream = self._files.create(self._path, False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def make_folder(self) -> None:
        """Make the folder and those above it."""
        self._files.mkdirs(self._path)

    def move_to(self, other: Place) -> None:
        """Rename to `other`, where nothing may be."""
        if not self._files.rename(self._path, other._path):
            raise ModelFileError(f"{self.uri} cannot be renamed to {other.uri}.")

    def delete(self) -> None:
        """Remove the file or folder if it is there."""
        self._files.delete(self._path, True)


def written(frame: DataFrame, place: Place) -> DataFrame:
    """Write a table down as Parquet and return it as read from there.

    Its schema is known: Spark would start a job to find it in the files.
    """
    frame.write.parquet(place.uri)
    return frame.sparkSession.read.schema(frame.schema).parquet(place.uri)


@contextmanager
def staged(
    spark: SparkSession, out: str, replaceable: Callable[[Place], bool], *, overwrite: bool
) -> Iterator[Place]:
    """Yield a new folder beside `out` that takes its place, or vanishes on an exception.

    Parameters
    ----------
    spark : SparkSession
    out : str
        Path or URI.
    replaceable : callable
        Whether what is at `out` is of a kind that `overwrite` may replace.
    overwrite : bool
        Replace it.

    Raises
    ------
    ModelFileError
        If something is in the way, or there is no folder to write in.
    """
    target = Place(spark, out)
    _check_target(target, out, replaceable, overwrite)
    mark = os.urandom(4).hex()
    folder = target.sibling(f".{target.name}.{mark}.tmp")
    try:
        folder.make_folder()
        yield folder
        _put_in_place(folder, target, target.sibling(f".{target.name}.{mark}.old"))
    except BaseException:
        with suppress(Exception):  # Spark may be gone; what is to be said is the failure before
            folder.delete()
        raise


def _check_target(
    target: Place, out: str, replaceable: Callable[[Place], bool], overwrite: bool
) -> None:
    if not target.exists():
        if not target.parent_exists:
            raise ModelFileError(f"Cannot write {out}: there is no folder to put it in.")
        return
    if not replaceable(target):
        raise ModelFileError(
            f"{out} exists and was not written by the Spark engine, so it is not replaced; "
            "choose another path."
        )
    if not overwrite:
        raise ModelFileError(
            f"There is a result of the Spark engine in {out} already; "
            "choose another path or ask to overwrite it."
        )


def _put_in_place(new: Place, target: Place, aside: Place) -> None:
    """Rename `new` to `target`; what is there is moved aside first, and back on failure."""
    if not target.exists():
        new.move_to(target)
        return
    target.move_to(aside)
    try:
        new.move_to(target)
    except BaseException:
        aside.move_to(target)
        raise
    aside.delete()
