"""HTTP requests to other processes for health and metrics, without heavy imports."""

import asyncio
import json

from popwheel_cli.process.listeners import host_in_address

_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_READ_BYTES = 256 * 1024


async def fetch(host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET a page.

    Args:
        host: name or address.
        port: where it answers.
        path: such as `/readyz`.
        timeout_s: for all of it.

    Returns:
        Status and body.

    Raises:
        OSError: nobody answers there, or not in HTTP, or with more than 16 MiB (TimeoutError: not in time).
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port, limit=_READ_BYTES)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nhost: {host_in_address(host)}:{port}\r\n\r\n".encode())
            answer = bytearray()
            while more := await reader.read(_READ_BYTES):
                answer += more
                if len(answer) > _ANSWER_BYTES_MAX:
                    raise OSError(f"{host}:{port} answers with more than {_ANSWER_BYTES_MAX} bytes")
        finally:
            writer.transport.abort()
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"{host}:{port} does not speak HTTP")
    return int(words[1]), body


async def why_not_ready(host: str, port: int, timeout_s: float) -> str:
    """Return why a process is not ready; empty if it is."""
    try:
        status, body = await fetch(host, port, "/readyz", timeout_s)
        return "" if status == 200 else "; ".join(map(str, json.loads(body)["reasons"].values()))
    except TimeoutError:
        return f"it does not answer within {timeout_s:g} s"
    except OSError as error:
        return f"it does not answer: {error.strerror or error}"
    except (ValueError, KeyError, AttributeError):
        return "what it answers cannot be read"
