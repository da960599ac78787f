"""Files and folders on any file system of Spark, and outputs that appear when they are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from recsys.errors import ModelFileError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WITH_FOLDERS = ("file", "hdfs", "viewfs")  # object stores have no folders that must exist


class Place:
    """A file or folder by its path or URI; without a scheme, of the default file system."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        given = jvm.org.apache.hadoop.fs.Path(str(path))
        self._files = given.getFileSystem(spark._jsc.hadoopConfiguration())
        self._path = self._files.makeQualified(given)
        self.uri, self.name = str(self._path.toString()), str(self._path.getName())

    def child(self, name: str) -> Place:
        """Return the place `name` in this folder."""
        return Place(self._spark, f"{self.uri}/{name}")

    @property
    def parent(self) -> Place:
        """Folder that it is in."""
        return Place(self._spark, self._path.getParent().toString())

    def exists(self) -> bool:
        """Return whether there is a file or folder."""
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        """Return whether there is a folder."""
        return self.exists() and bool(self._files.getFileStatus(self._path).isDirectory())

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all entries of the folder that Spark would read, by sorted name."""
        listed = self._files.listStatus(self._path)
        found = sorted((str(each.getPath().getName()), int(each.getLen())) for each in listed)
        return {name: size for name, size in found if not name.startswith((".", "_SUCCESS"))}

    def read_text(self) -> str:
        """Return the contents of a text file."""
        with closing(self._files.open(self._path)) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write_text(self, text: str) -> None:
        """Write a new text file."""
        with closing(self._files.create(self._path, False)) as stream:
            stream.write(bytearray(text.encode()))

    def move_to(self, other: Place) -> None:
        """Rename to `other`, which must not exist.

        Raises
        ------
        ModelFileError
        """
        if not self._files.rename(self._path, other._path):
            raise ModelFileError(f"{self.uri} cannot be renamed to {other.uri}.")

    def delete(self) -> None:
        """Remove the file or folder if it exists."""
        self._files.delete(self._path, True)


def written(frame: DataFrame, place: Place) -> DataFrame:
    """Write a table as Parquet and return it as read from there, with the schema that it has."""
    frame.write.parquet(place.uri)
    return frame.sparkSession.read.schema(frame.schema).parquet(place.uri)


@contextmanager
def staged(
    spark: SparkSession, out: str, replaceable: Callable[[Place], bool], *, overwrite: bool
) -> Iterator[Place]:
    """Yield a new hidden folder that is renamed to `out`, or deleted after an exception.

    `replaceable` tells whether an existing folder is of a kind that `overwrite` may replace.

    Raises
    ------
    ModelFileError
    """
    target = Place(spark, out)
    if not target.exists():
        scheme = target.uri.partition(":")[0]
        if scheme in _WITH_FOLDERS and not target.parent.exists():
            raise ModelFileError(f"Cannot write {out}: its parent folder does not exist.")
    elif not replaceable(target):
        raise ModelFileError(
            f"{out} exists and was not written by the Spark engine, so it is not replaced; "
            "choose another path."
        )
    elif not overwrite:
        raise ModelFileError(
            f"{out} is a result of the Spark engine already; choose another path or overwrite it."
        )
    mark = os.urandom(4).hex()
    folder, old = (target.parent.child(f".{target.name}.{mark}.{end}") for end in ("tmp", "old"))
    try:
        yield folder
        put_in_place(folder, target, old)
    except BaseException:
        with suppress(Exception):  # Spark may be gone; the first failure is the one to report
            folder.delete()
        raise


def put_in_place(new: Place, target: Place, old: Place) -> None:
    """Rename `new` to `target`; an existing target is renamed to `old` first, back on failure."""
    replaces = target.exists()
    if replaces:
        target.move_to(old)
    try:
        new.move_to(target)
    except BaseException:
        if replaces:
            old.move_to(target)
        raise
    old.delete()
