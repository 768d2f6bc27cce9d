"""Extras of the package: libraries that few settings need, so that not every installation has them."""

from collections.abc import Iterator
from contextlib import contextmanager

from popwheel_common.errors import ConfigurationError


class MissingExtraError(ConfigurationError):
    """A setting that needs an extra which is not installed.

    Args:
        key: the setting's full name.
        instead: what its value must be without the extra: `must be file`.
        extra: the name in `popwheel[NAME]`.
    """

    def __init__(self, key: str, instead: str, extra: str) -> None:
        self.remedy = f'the extra is missing: pip install "popwheel[{extra}]"'
        super().__init__(key, f"{instead}, because {self.remedy}")


@contextmanager
def needs_extra(key: str, instead: str, extra: str) -> Iterator[None]:
    """Import the libraries of an extra within; arguments as of `MissingExtraError`.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(key, instead, extra) from error
