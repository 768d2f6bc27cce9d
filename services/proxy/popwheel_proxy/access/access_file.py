"""Reader of the access file."""

from pathlib import Path

from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.watched_file import WatchedFile
from popwheel_proxy.access.document import FILE_BYTES_MAX, users_of
from popwheel_proxy.access.users import Users


def access_file(path: str) -> WatchedFile[Users]:
    """Return the users of a file, which is read again when it changes.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    try:
        return WatchedFile(Path(path), users_of, "the access file", FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError("access.file", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError("access.file", f"{path} is no access file: {error}") from None
