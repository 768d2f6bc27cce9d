"""TLS: contexts from files, and a session without its socket."""

import ssl
from pathlib import Path

_READ_BYTES = 256 * 1024
_HANDSHAKE_TURNS = 3


def server_context(certificate: Path, key: Path, authority: Path | None = None) -> ssl.SSLContext:
    """Return a server's context from PEM files.

    Args:
        certificate: the server's certificate, followed by the rest of its chain.
        key: its private key, not encrypted.
        authority: then clients must show a certificate by one of those in this file; None: nothing is asked of them.

    Raises:
        OSError: a file cannot be read (`ssl.SSLError`, a kind of it: or is not what it should be).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _show(context, certificate, key)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, authority)
    return context


def client_context(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Return the context of a client that has a certificate, and checks the server's name and certificate.

    Args:
        certificate: the client's own, as for `server_context`.
        key: its private key, not encrypted.
        authority: those whose servers it trusts.

    Raises:
        OSError: as for `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, certificate, key)
    _trust(context, authority)
    return context


def _show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # With no password OpenSSL would ask at the terminal for that of an encrypted key.
    context.load_cert_chain(certificate, key, password="")
    context.set_alpn_protocols(["h2"])


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    context.load_verify_locations(authority)
    # Every certificate in the file is trusted, also one signed by another authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def reason_of(error: ssl.SSLError) -> str:
    """Return why a connection failed, in OpenSSL's words."""
    why = error.reason or str(error)
    return f"{why}: {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else why


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Check that two contexts accept each other's certificates; names are not checked.

    Args:
        server: one that asks for a certificate.
        client: it is not to be used for anything else afterwards.

    Raises:
        ssl.SSLError: they do not.
    """
    client.check_hostname = False
    caller, called = TlsSession(client, "localhost"), TlsSession(server)
    caller.start()
    for _ in range(_HANDSHAKE_TURNS):
        called.receive(caller.take())
        caller.receive(called.take())


class TlsSession:
    """A TLS connection: encrypted bytes in, plain bytes out, and the other way round.

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
        """Buffered bytes of an incomplete record."""
        return self._incoming.pending

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes; return the plain ones. `take` may have bytes to send afterwards.

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
            pass  # all available data has been read
        except ssl.SSLZeroReturnError:
            pass  # the other side has closed TLS; its socket closes next
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
        """Return the encrypted bytes to be sent."""
        return self._outgoing.read()
