"""Texts that a controller signs and gets back from browsers, each with the time of its signature."""

import hashlib
from typing import Any, Final

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from popwheel_common.clock import Clock

SECRET_BYTES_MIN: Final = 32


class Signatures:
    """Signs values of one kind: what is signed for one use is good for no other.

    Args:
        secret: of all controllers of a cluster.
        use: what the values are for.
        clock: the wall clock.
    """

    def __init__(self, secret: bytes, use: str, clock: Clock) -> None:
        class Signer(TimestampSigner):
            """Takes the time from the clock of this process."""

            def get_timestamp(self) -> int:
                return clock.wall_ms() // 1000

        self._clock = clock
        self._serializer = URLSafeTimedSerializer(
            secret,
            salt=f"popwheel {use}",
            signer=Signer,
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    def sign(self, value: Any) -> str:
        """Return a signed text.

        Args:
            value: what JSON can say.
        """
        return str(self._serializer.dumps(value))

    def read(self, text: str, seconds_max: int) -> Any:
        """Return the value of a signed text; None if nobody here signed it, or if that was too long ago.

        Args:
            text: the signed text.
            seconds_max: its signature is no older.
        """
        try:
            return self._serializer.loads(text, max_age=seconds_max)
        except BadData:
            return None
