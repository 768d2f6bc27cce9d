"""A data source whose first task dies in the middle, as its Python process is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from popwheel_spark import PopwheelDataSource
from popwheel_spark.source.read_options import ReadOptions
from popwheel_spark.source.stream_reader import StreamReader


class FragileReader(StreamReader):
    """Reads a stream, and dies once.

    Args:
        options: what, and how.
        flag: the file that is made before.
    """

    def __init__(self, options: ReadOptions, flag: Path) -> None:
        super().__init__(options)
        self._flag = flag

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part; the first one that has rows ends with its process."""
        for batch in super().read(partition):
            yield batch
            if not self._flag.exists():
                self._flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)


class FragileDataSource(PopwheelDataSource):
    """`popwheel`, under another name. The option `path`, which is Spark's own, names the file that says it has died."""

    @classmethod
    def name(cls) -> str:
        return "fragile"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        whole = super().streamReader(schema)
        assert isinstance(whole, StreamReader)
        return FragileReader(whole._options, Path(self.options["path"]))
