"""The job `compaction`: fewer, larger files in an archive, while others write and read it (docs/use/spark-jobs.md)."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

import click

from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import JobError

_MIB = 2**20


@dataclass(frozen=True)
class Merger:
    """Files of one date and topic that become fewer.

    Args:
        partition: `date=.../topic=...`.
        files: that are replaced, relative to the archive.
        pieces: number of the new files.
    """

    partition: str
    files: tuple[str, ...]
    pieces: int


def plan(sizes: Iterable[tuple[str, int]], target_bytes: int) -> list[Merger]:
    """Return the files worth replacing: those below half the target, where fewer take their place (pure).

    Args:
        sizes: the files that count, and their bytes.
        target_bytes: size of a new file.
    """
    small: dict[str, list[tuple[str, int]]] = {}
    for file, size in sorted(sizes):
        if size < target_bytes / 2:
            partition = f"date={file.partition('/date=')[2].rpartition('/')[0]}"
            small.setdefault(partition, []).append((file, size))
    mergers = [
        Merger(partition, tuple(file for file, _ in files), max(1, -(-sum(size for _, size in files) // target_bytes)))
        for partition, files in small.items()
    ]
    return [merger for merger in mergers if merger.pieces < len(merger.files)]


def compact(folder: ArchiveFolder, target_bytes: int) -> tuple[int, int]:
    """Compact an archive; return how many files were replaced, and by how many.

    Args:
        folder: of the archive. Its stream may go on, and readers may read.
        target_bytes: size of a new file.

    Raises:
        JobError: there is no archive, another compaction runs, or what was written is not what was read.
    """
    # Before the manifest: what it replaces was committed before, and is taken from the list.
    committed = folder.committed()
    manifest = folder.manifest()
    files = manifest.current(committed)
    mergers = plan(zip(files, folder.sizes(files), strict=True), target_bytes)
    if not mergers:
        return 0, 0
    root = f"compacted/{manifest.number + 1}-{uuid4().hex[:8]}"
    made: list[str] = []
    try:
        for merger in mergers:
            click.echo(f"{merger.partition}: {len(merger.files)} files become {merger.pieces}")
            made += _merge(folder, merger, root)
        # Those that the previous compaction replaced. Their readers had the time since then.
        folder.delete(manifest.leaving)
        folder.put_manifest(manifest.next(made, (file for merger in mergers for file in merger.files)))
    except BaseException:
        folder.delete([root])
        raise
    return sum(len(merger.files) for merger in mergers), len(made)


def _merge(folder: ArchiveFolder, merger: Merger, root: str) -> list[str]:
    """Write the new files, in the order of queues and offsets; return their names."""
    rows = folder.table_of(merger.files)
    target = f"{root}/{merger.partition}"
    order = ("brokerName", "queueId", "queueOffset")
    ordered = rows.drop("date", "topic").repartitionByRange(merger.pieces, *order).sortWithinPartitions(*order)
    ordered.write.parquet(f"{folder.path}/{target}")
    written = [f"{target}/{name}" for name in folder.names(target) if name.endswith(".parquet")]
    before, after = rows.count(), folder.table_of(written).count()
    if before != after:
        raise JobError(f"{merger.partition} has {before} messages, and {after} were written; nothing was changed")
    return written


@click.command(epilog="Example: popwheel-spark compaction --archive /data/archive --target-mib 256")
@click.option("--archive", "path", required=True, metavar="FOLDER", help="Folder that the job archive writes to.")
@click.option(
    "--target-mib",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Size of a new file, in MiB.",
)
def compaction(path: str, target_mib: int) -> None:
    """Replace an archive's small files by fewer, larger ones.

    Its stream and its readers may continue meanwhile. Run one compaction at a time.
    """
    folder = ArchiveFolder(job_session("compaction"), path)
    replaced, made = compact(folder, target_mib * _MIB)
    click.echo(f"replaced {replaced:,} files by {made:,}; now {folder.describe()}")


if __name__ == "__main__":
    run(compaction)
