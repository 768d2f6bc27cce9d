"""Folders of several brokers in one data folder; no start may leave one of them out."""

from pathlib import Path

from popwheel_common.errors import ConfigurationError


def replica_folder(group: int, replica: int = 0) -> str:
    """Return the folder of a replica; that of the first does not depend on their number."""
    return f"broker-{group}-{replica}" if replica else f"broker-{group}"


def check_cluster_folder(data_dir: Path, groups: int, replicas: int = 1) -> None:
    """Check that a data folder belongs to such a cluster, or is new.

    Raises:
        ConfigurationError: it is not, or it holds brokers that would be left out.
    """
    if (data_dir / "broker").exists():
        raise ConfigurationError(
            "--data-dir", f"{data_dir} holds data of a broker that runs by itself or standalone; give another folder"
        )
    found = _replicas(data_dir)
    group, replica = (max(numbers, default=0) for numbers in (found, found.values()))
    _check_groups("--groups", data_dir, group, groups)
    if replica >= replicas:
        raise ConfigurationError(
            "--replicas", f"must be at least {replica + 1}, because {data_dir} holds replicas with the number {replica}"
        )


def check_standalone_folder(data_dir: Path, brokers: int) -> None:
    """Check that a data folder is no cluster's, and that no broker in it would be left out.

    Raises:
        ConfigurationError: it is, or one would.
    """
    found = _replicas(data_dir)
    if 0 in found:
        raise ConfigurationError(
            "--data-dir", f"{data_dir} holds data of `popwheel cluster`; run that, or give another folder"
        )
    _check_groups("--brokers", data_dir, max(found, default=0), brokers)


def _check_groups(option: str, data_dir: Path, group: int, groups: int) -> None:
    if group >= groups:
        raise ConfigurationError(
            option, f"must be at least {group + 1}, because {data_dir} holds the messages of broker-{group}"
        )


def _replicas(data_dir: Path) -> dict[int, int]:
    """Return the numbers of broker groups that have a folder, each with the highest number of a replica."""
    found: dict[int, int] = {}
    for path in data_dir.glob("broker-*"):
        words = path.name.split("-")[1:]
        if all(word.isdigit() for word in words) and len(words) <= 2:
            group, replica = int(words[0]), int(words[1]) if len(words) == 2 else 0
            found[group] = max(found.get(group, 0), replica)
    return found
