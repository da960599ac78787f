"""Files and folders of a file system that Spark can see, and results that appear when complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from recsys.addresses import has_password, located, whole
from recsys.errors import DataError, ModelFileError, check_flags

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Object stores have no folders that must exist.
_WITH_FOLDERS = ("file", "hdfs", "viewfs")


class SparkPath:
    """A file or folder, given by a path or URI; without a scheme on the default file system."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        if has_password(path):
            raise DataError(
                f"{located(path)} has a password; give it as a setting of Spark (--conf), such as "
                "spark.hadoop.fs.s3a.secret.key."
            )
        self._spark = spark
        jvm: Any = spark._jvm
        hadoop_path = jvm.org.apache.hadoop.fs.Path(whole(str(path)))
        self._files = hadoop_path.getFileSystem(spark._jsc.hadoopConfiguration())
        self._path = self._files.makeQualified(hadoop_path)
        self.uri = str(self._path.toString())
        self.name = str(self._path.getName())

    def child(self, name: str) -> SparkPath:
        """Return the path `name` in this folder."""
        return SparkPath(self._spark, f"{self.uri}/{name}")

    def exists(self) -> bool:
        """Return whether there is a file or folder."""
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        """Return whether there is a folder."""
        return bool(self._files.isDirectory(self._path))

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all entries that Spark would read, by name."""
        entries = {
            str(status.getPath().getName()): int(status.getLen())
            for status in self._files.listStatus(self._path)
        }
        return {
            name: entries[name]
            for name in sorted(entries)
            if not name.startswith((".", "_SUCCESS"))
        }

    def read_text(self) -> str:
        """Return the contents of a text file."""
        with closing(self._files.open(self._path)) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write_text(self, text: str) -> None:
        """Write a new text file."""
        with closing(self._files.create(self._path, False)) as stream:
            stream.write(bytearray(text.encode()))

    def move_to(self, other: SparkPath) -> None:
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


def written(frame: DataFrame, path: SparkPath) -> DataFrame:
    """Write a table as Parquet, and return the table that reads it."""
    frame.write.parquet(path.uri)
    return frame.sparkSession.read.schema(frame.schema).parquet(path.uri)


@contextmanager
def staged(
    spark: SparkSession,
    out: str,
    replaceable: Callable[[SparkPath], bool],
    *,
    overwrite: bool,
) -> Iterator[SparkPath]:
    """Yield a new hidden folder; rename it to `out` at the end, or delete it after an exception.

    `replaceable` returns whether `overwrite` may replace an existing folder.

    Raises
    ------
    ModelFileError
    """
    check_flags(overwrite=overwrite)
    target = SparkPath(spark, out)
    parent = SparkPath(spark, target.uri.removesuffix(f"/{target.name}") or "/")
    problem = None
    if not target.exists():
        scheme = target.uri.partition(":")[0]
        if scheme in _WITH_FOLDERS and not parent.exists():
            problem = f"Cannot write {out}: its parent folder does not exist."
    elif not replaceable(target):
        problem = (
            f"{out} exists and was not written by the Spark engine, so it is not replaced; "
            "choose another path."
        )
    elif not overwrite:
        problem = (
            f"{out} is already a result of the Spark engine; "
            "choose another path or overwrite it."
        )
    if problem is not None:
        raise ModelFileError(problem)
    mark = os.urandom(4).hex()
    folder = parent.child(f".{target.name}.{mark}.tmp")
    try:
        yield folder
        put_in_place(folder, target, parent.child(f".{target.name}.{mark}.old"))
    except BaseException:
        # Spark may be gone; the first failure is the one to report.
        with suppress(Exception):
            folder.delete()
        raise


def put_in_place(
    new: SparkPath,
    target: SparkPath,
    old: SparkPath,
) -> None:
    """Rename `new` to `target`, and before that an existing target to `old`; undo it on failure."""
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
