"""TLS: certificates from files or made on the spot, and a session without its socket."""

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path

_READ_BYTES = 256 * 1024
_DAYS_VALID = 3650


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context from PEM files.

    Args:
        certificate: the server's certificate, followed by the rest of its chain.
        key: its private key.

    Raises:
        OSError: a file cannot be read (`ssl.SSLError`, a kind of it: or is not what it should be).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """A client's context that checks the server's certificate, against `authority` (PEM) or the machine's own list."""
    context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    context.set_alpn_protocols(["h2"])
    return context


def self_signed(now: datetime.datetime) -> tuple[bytes, bytes]:
    """Make a certificate for localhost and its key, both PEM, as clients that trust anything take it.

    Args:
        now: the certificate is valid from the day before this and for ten years.
    """
    # Imported here: it takes longer to load than all the rest of a server, and few need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS_VALID))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def self_signed_context(now: datetime.datetime) -> ssl.SSLContext:
    """A server's context with a certificate of its own making (`self_signed`); the key touches no disk for long."""
    certificate, key = self_signed(now)
    with tempfile.TemporaryDirectory() as folder:
        certificate_file = Path(folder) / "certificate.pem"
        key_file = Path(folder) / "key.pem"
        certificate_file.write_bytes(certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        return server_context(certificate_file, key_file)


class TlsSession:
    """One TLS connection: encrypted bytes in, plain bytes out, and the other way round.

    Args:
        context: certificates and what is to be checked.
        server_name: the name a client checks; None for a server.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self.established = False
        self._early: list[bytes] = []

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that are kept because their record is not yet whole."""
        return self._incoming.pending

    def receive(self, data: bytes) -> bytes:
        """Take encrypted bytes in; the plain bytes they hold. `take` may have something to send afterwards.

        Raises:
            ssl.SSLError: the other side does not keep to TLS, or its certificate is not good.
        """
        self._incoming.write(data)
        plain = []
        try:
            if not self.established:
                self._session.do_handshake()
                self.established = True
                for early in self._early:
                    self._session.write(early)
                self._early.clear()
            while part := self._session.read(_READ_BYTES):
                plain.append(part)
        except ssl.SSLWantReadError:
            pass  # all that is there has been read
        except ssl.SSLZeroReturnError:
            pass  # the other side has said goodbye; its socket closes next
        return b"".join(plain)

    def start(self) -> None:
        """Begin the handshake as a client; `take` has its first message."""
        self.receive(b"")

    def send(self, data: bytes) -> None:
        """Encrypt bytes (kept until the handshake is done); `take` has the result."""
        if not self.established:
            self._early.append(data)
        elif data:
            self._session.write(data)

    def take(self) -> bytes:
        """The encrypted bytes that are to be sent."""
        return self._outgoing.read()
