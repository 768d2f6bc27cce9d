"""Options that were renamed: their old names work for one more minor release (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.advertised_address import AdvertisedAddress

_PORT_MAX = 65_535


def _same(_: object, value: object) -> object:
    return value


def _with_host(address: object, host: object) -> str:
    if not isinstance(host, str):
        raise ValueError("must be text")
    return str(AdvertisedAddress(AdvertisedAddress.parse(host).host, _parsed(address).port))


def _with_port(address: object, port: object) -> str:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _PORT_MAX:
        raise ValueError(f"must be a whole number from 0 to {_PORT_MAX}")
    return str(AdvertisedAddress(_parsed(address).host, port))


def _parsed(address: object) -> AdvertisedAddress:
    return AdvertisedAddress.parse(address) if isinstance(address, str) else AdvertisedAddress()


@dataclass(frozen=True, slots=True)
class RenamedOption:
    """Successor of an option.

    Args:
        name: its name now, in full.
        convert: makes its value, from its value of an earlier place (None if there is none) and that of the old option.
    """

    name: str
    convert: Callable[[object, object], object] = _same


RENAMED_OPTIONS: Final[Mapping[str, RenamedOption]] = {
    "broker.controller_address": RenamedOption("broker.controller"),
    "proxy.advertised_host": RenamedOption("proxy.advertised_address", _with_host),
    "proxy.advertised_port": RenamedOption("proxy.advertised_address", _with_port),
}
"""Old names of options, accepted for one more minor release -> their successors."""


class OldNames:
    """Old names among the settings of one process.

    Attributes:
        found: old names that were used -> their new ones.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._given: dict[tuple[str, str], set[str]] = {}

    def replaced(self, newer: Mapping[Any, Any], settings: Mapping[str, Any], place: str) -> Mapping[Any, Any]:
        """Return the settings of one place, nested, under their new names.

        Args:
            newer: as they were given.
            settings: those of earlier places.
            place: the file, the environment, the command line.

        Raises:
            ConfigurationError: a place gives an option by its old and its new name, or a value is impossible.
        """
        as_given = newer
        for old, renamed in RENAMED_OPTIONS.items():
            section, name = old.split(".")
            new_name = renamed.name.removeprefix(f"{section}.")
            own = as_given.get(section)
            if not isinstance(own, Mapping):
                continue
            given = self._given.setdefault((place, renamed.name), set())
            given |= {f"{section}.{key}" for key in (name, new_name) if key in own}
            if renamed.name in given and len(given) > 1:
                (former, *_) = sorted(given - {renamed.name})
                raise ConfigurationError(
                    former, f"is the old name of {renamed.name}, which is given as well ({place}): remove {former}"
                )
            if name in own:
                self.found[old] = renamed.name
                own = newer[section]
                earlier = own.get(new_name, settings.get(section, {}).get(new_name))
                try:
                    value = renamed.convert(earlier, own[name])
                except ValueError as error:
                    raise ConfigurationError(old, f"{error} ({place}); the option is {renamed.name} now") from error
                newer = {**newer, section: {**{key: own[key] for key in own if key != name}, new_name: value}}
        return newer
