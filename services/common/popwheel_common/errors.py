"""The error type that carries a status to the caller: a client, another service or the admin command line."""

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class StatusError(Exception):
    """A request that is refused, with a code of `apache.rocketmq.v2.Code` and a sentence that says what to do.

    Raised by cores and handlers alike; nothing has been changed when it is raised. The proxy turns it into the
    `Status` of its answer; between our own services it travels as trailers of the call (`popwheel_rpc`).

    Args:
        code: what is wrong, in the protocol's own numbers.
        message: one sentence for a person: what was asked, why not, what to do about it.
    """

    def __init__(self, code: Code.ValueType, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{code_name(self.code)}: {self.message}"


class NotLeadingError(StatusError):
    """A controller's refusal because it does not lead: it has not read the request, so nothing of it was done.

    Callers recognize it by its type, also behind a socket; other refusals with HA_NOT_AVAILABLE prove nothing.

    Args:
        message: one sentence for a person.
        leader: where the admin API of the one that leads is, `host:port`; empty if that is not known.
    """

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(Code.HA_NOT_AVAILABLE, message)
        self.leader = leader


class InconsistentClusterIdError(StatusError):
    """A refusal of one who belongs to another cluster: callers go by its type, here and behind a socket. The code lets
    callers look elsewhere, as for any service that is not there for them.

    Args:
        message: one sentence that names both clusters.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.HA_NOT_AVAILABLE, message)


class CorruptDataError(Exception):
    """Damage of stored bytes that were good before (invariant S7): the service must stop."""


class UnknownFormatError(Exception):
    """A file of a version or kind that this release does not know; it is left untouched."""


class ConfigurationError(Exception):
    """An impossible setting.

    Args:
        key: the setting's full name, such as `broker.flush`.
        sentence: what is wrong with its value and what values are possible.
    """

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(f"{key}: {sentence}")
        self.key = key
        self.sentence = sentence


def forget_frames(error: BaseException) -> None:
    """Drop the frames that an error passed, and its cause: they keep a request's bytes alive.

    For an error that is answered and needs no traceback. A frame that keeps its error is a cycle, and those are
    collected late (decision 0022): sixty refused polls of 4 MiB stayed for up to an hour.

    Args:
        error: changed in place.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None


def code_name(code: int) -> str:
    """Return the protocol's name of a code, or its number where this release knows no name for it."""
    try:
        return Code.Name(Code.ValueType(code))
    except ValueError:
        return str(code)
