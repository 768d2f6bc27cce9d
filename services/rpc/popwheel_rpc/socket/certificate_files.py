"""Certificate files, which are reloaded when they change."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.clock import Clock
from popwheel_rpc.socket.tls import check_handshake, client_context, server_context

log = structlog.get_logger()

_Stamps = tuple[tuple[int, int, int] | None, ...]


class CertificateFiles:
    """A certificate with its key, and perhaps the authorities that must have signed the other side's certificate.

    The files are checked before each new connection, and at each scrape: changed ones are loaded, and
    existing connections stay as they are. Invalid files leave the previous content in use.

    Args:
        certificate: PEM file, followed by the rest of its chain.
        key: PEM file of its private key.
        authority: PEM file of all authorities that are trusted. Then both sides show certificates.
        both_sides: whether this one must itself be by one of them and good for both sides; else it is a server's, and
            only its clients' are by them.

    Raises:
        OSError: a file cannot be read (`ssl.SSLError`, a kind of it: or they do not belong together).
        ValueError: there is no certificate in a file.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path | None = None, *, both_sides: bool = True) -> None:
        self._certificate = certificate
        self._key = key
        self._authority = authority
        self._both_sides = both_sides
        self._stamps = self._read_stamps()
        self.trouble = ""
        """Reason why the files' current content is not in use; empty if it is."""
        self._load()

    def server(self) -> ssl.SSLContext:
        """Return the context for the next accepted connection."""
        self.refresh()
        return self._server

    def client(self) -> ssl.SSLContext:
        """Return the context for the next connection to a server; only with an authority, and for both sides."""
        self.refresh()
        assert self._client is not None
        return self._client

    def expires_s(self) -> float:
        """Return when the certificate in use, or its last authority, expires: in seconds since 1970."""
        self.refresh()
        return self._expires_s

    def refresh(self) -> None:
        """Load changed files."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        try:
            self._load()
            self.trouble = ""
            log.info("loaded a certificate", file=str(self._certificate))
        except (OSError, ValueError) as error:
            if stamps != self._read_stamps():
                return  # they changed while they were read: the next call loads them
            self.trouble = str(error)
            log.warning(
                "a new certificate cannot be used, the previous one stays in use",
                file=str(self._certificate),
                reason=self.trouble,
            )
        self._stamps = stamps

    def _read_stamps(self) -> _Stamps:
        return tuple(map(_stamp, (self._certificate, self._key, self._authority)))

    def _load(self) -> None:
        """Read the files; nothing is changed unless all of them are good."""
        expires_s = _expires_s(self._certificate, min)
        self._key.read_bytes()  # so that an error names the file
        client = None
        if self._authority is not None:
            expires_s = min(expires_s, _expires_s(self._authority, max))
            if self._both_sides:
                client = client_context(self._certificate, self._key, self._authority)
        server = server_context(self._certificate, self._key, self._authority)
        if self._authority is not None and self._both_sides:
            check_handshake(server, client_context(self._certificate, self._key, self._authority))
        self._server, self._client, self._expires_s = server, client, expires_s


class CertificateMetrics(Collector):
    """Metrics of certificates: until when they are valid.

    Args:
        registry: where the metrics `popwheel_certificate_...` appear.
        clock: the time.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._files: dict[str, CertificateFiles] = {}
        registry.register(self)

    def show(self, use: str, files: CertificateFiles) -> None:
        """Add a certificate; `use` is `clients` or `services`."""
        self._files[use] = files

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        expires = GaugeMetricFamily(
            "popwheel_certificate_expires_seconds",
            "Remaining validity of the certificate in use, or of its authority, in seconds",
            labels=["use"],
        )
        refused = GaugeMetricFamily(
            "popwheel_certificate_refused",
            "1 while the files are invalid, so that the previous certificate stays in use",
            labels=["use"],
        )
        for use, files in self._files.items():
            expires.add_metric([use], files.expires_s() - self._clock.wall_ms() / 1000)
            refused.add_metric([use], 1 if files.trouble else 0)
        yield expires
        yield refused


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Return a stamp that distinguishes one content of a file from another; None if there is no file."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _expires_s(file: Path, of_all: Callable[[Iterator[float]], float]) -> float:
    """Return the expiry of a file's certificates, in seconds since 1970: of the first to expire, or of the last."""
    from cryptography import x509  # takes a while to load, and few need it

    certificates = x509.load_pem_x509_certificates(file.read_bytes())
    return of_all(each.not_valid_after_utc.timestamp() for each in certificates)
