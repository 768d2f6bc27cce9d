"""Certificates of test authorities, in files as Kubernetes mounts a Secret."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from popwheel_rpc.socket.certificate_files import CertificateFiles
from popwheel_rpc.socket.certificates import KeyPair, authority, signed

DAYS = 90
NAMES = ("localhost", "127.0.0.1")


def now() -> datetime.datetime:
    """Certificates are checked by the machine's own clock."""
    return datetime.datetime.now(datetime.UTC)


def new_authority() -> KeyPair:
    """One that is valid for a year."""
    return authority(now(), 365)


def certificate_by(by: KeyPair, names: Sequence[str] = NAMES, days_ago: int = 0, days: int = DAYS) -> KeyPair:
    """A certificate that was made some days ago, valid for `days` from then on."""
    return signed(by, names, now() - datetime.timedelta(days=days_ago), days)


class CertificateVolume:
    """Files whose names lead through one link; all change at once when it is swapped.

    Args:
        folder: where they are; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.certificate, self.key, self.authority = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
        folder.mkdir(parents=True)
        for file in (self.certificate, self.key, self.authority):
            file.symlink_to(Path("..data") / file.name)

    def hold(self, pair: KeyPair, *authorities: KeyPair) -> None:
        """Hold a certificate with its key, and the authorities that are trusted."""
        self.hold_bytes(pair.certificate, pair.key, b"".join(each.certificate for each in authorities))

    def hold_bytes(self, certificate: bytes | None, key: bytes | None, authorities: bytes | None) -> None:
        """Hold these contents; None: there is no such file."""
        self._count += 1
        contents = self._folder / f"..{self._count}"
        contents.mkdir()
        for file, content in ((self.certificate, certificate), (self.key, key), (self.authority, authorities)):
            if content is not None:
                (contents / file.name).write_bytes(content)
        link = self._folder / "..new"
        link.symlink_to(contents.name)
        link.replace(self._folder / "..data")

    def files(self) -> CertificateFiles:
        """They, as a process of the cluster reads them."""
        return CertificateFiles(self.certificate, self.key, self.authority)

    @property
    def settings(self) -> list[str]:
        """Words of a command line that name them."""
        return [
            *("--set", f"tls.certificate_file={self.certificate}", "--set", f"tls.key_file={self.key}"),
            *("--set", f"tls.authority_file={self.authority}"),
        ]
