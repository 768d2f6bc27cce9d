"""Files on this machine, HDFS or an object store, by the Hadoop library of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRAFT = ".draft"


class FileSystem:
    """File systems of a session.

    Args:
        spark: a session with a JVM of its own, not one of Spark Connect.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext
        self._gateway = context._gateway
        self._hadoop = context._jvm.org.apache.hadoop
        self._settings = context._jsc.hadoopConfiguration()

    def full(self, path: str) -> str:
        """Return a path with its file system: `file:/tmp/archive`, without a slash at its end."""
        where = self._hadoop.fs.Path(path)
        return str(where.getFileSystem(self._settings).makeQualified(where).toString())

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        system, where = self._at(folder)
        if not system.exists(where):
            return []
        return sorted(status.getPath().getName() for status in system.listStatus(where))

    def size(self, file: str) -> int:
        """Return the bytes of a file."""
        system, where = self._at(file)
        return int(system.getFileStatus(where).getLen())

    def text(self, file: str) -> str:
        """Return the text of a file."""
        rows = self._spark.read.text(file, wholetext=True).collect()
        return str(rows[0][0])

    def put_new(self, file: str, text: str) -> bool:
        """Write a file atomically; false if it exists already.

        On object stores another process that does the same at the same moment may not be noticed.
        """
        from py4j.protocol import Py4JJavaError

        try:
            self._put(file, text)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception):
                return False
            raise
        return True

    def put(self, file: str, text: str) -> None:
        """Write or replace a file."""
        self._put(file, text, self._hadoop.fs.Options.Rename.OVERWRITE)

    def _put(self, file: str, text: str, *options: Any) -> None:
        system, draft = self._at(f"{file}{_DRAFT}")
        stream = system.create(draft, True)
        stream.write(text.encode())
        stream.close()
        array = self._gateway.new_array(self._hadoop.fs.Options.Rename, len(options))
        for number, option in enumerate(options):
            array[number] = option
        context = self._hadoop.fs.FileContext.getFileContext(draft.toUri(), self._settings)
        context.rename(draft, self._hadoop.fs.Path(file), array)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""
        system, where = self._at(path)
        system.delete(where, True)

    def _at(self, path: str) -> tuple[Any, Any]:
        where = self._hadoop.fs.Path(path)
        return where.getFileSystem(self._settings), where
