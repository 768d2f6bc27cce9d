"""Access control: each call is checked against the users of the access file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from popwheel_common.audit_log import AuditLog
from popwheel_common.clock import Clock
from popwheel_common.contract.credentials import AUTHORIZATION, DATE_TIME
from popwheel_common.contract.names import shown
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.watched_file import WatchedFile
from popwheel_proxy.access.demands import DEMANDS, Demand, Demands
from popwheel_proxy.access.metrics import AccessMetrics
from popwheel_proxy.access.signature import claim_of, is_by, is_timely
from popwheel_proxy.access.users import Right, Sort, User, Users
from popwheel_rpc.service import Call

_NOBODY = User("", b"nobody has this secret", {})
_WRONG = "the access key or its secret is wrong"


@dataclass(slots=True)
class Caller:
    """Caller of a call, and the rights that the call has used so far.

    Args:
        user: as it was when the call began.
        method: what is called.
        peer: the client's address.
        client_id: what the client calls itself.
        users: those by whom the demands were met.
        demands: of the last request.
    """

    user: User
    method: str
    peer: str
    client_id: str
    users: Users
    demands: Demands = field(default=())


class Access:
    """Check of callers: it accepts them, or raises their error.

    Args:
        file: the users.
        skew_ms: how far a signed time may be from now; 0: any.
        clock: the time.
        metrics: counts denials.
        is_missing: whether the topic or group of a demand is known not to be there.
    """

    def __init__(
        self,
        file: WatchedFile[Users],
        skew_ms: int,
        clock: Clock,
        metrics: AccessMetrics,
        is_missing: Callable[[Demand], bool],
    ) -> None:
        self._file = file
        self._skew_ms = skew_ms
        self._clock = clock
        self._metrics = metrics
        self._is_missing = is_missing
        self._log = AuditLog(clock.monotonic)

    def caller_of(self, call: Call, method: str, client_id: str) -> Caller:
        """Return the caller of a call.

        Raises:
            StatusError: UNAUTHORIZED.
        """
        users = self._file.content
        caller = Caller(_NOBODY, method, call.peer, client_id, users)
        try:
            claim = claim_of(call.metadata.get(AUTHORIZATION, ""))
        except ValueError:
            self._deny_caller(
                caller, "", "no_signature", "the call carries no signature; give the client an access key and a secret"
            )
        if not claim.access_key:
            self._deny_caller(
                caller, "", "no_credentials", "the client was given no access key; give it one, and its secret"
            )
        user = users.get(claim.access_key)
        date_time = call.metadata.get(DATE_TIME, "")
        right = is_by((user or _NOBODY).secret, date_time, claim.signature)
        if user is None:
            self._deny_caller(caller, claim.access_key, "unknown_access_key", _WRONG)
        if not right:
            self._deny_caller(caller, claim.access_key, "wrong_signature", _WRONG)
        if self._skew_ms:
            try:
                timely = is_timely(date_time, self._clock.wall_ms(), self._skew_ms)
            except ValueError:
                timely = False
            if not timely:
                self._deny_caller(
                    caller,
                    claim.access_key,
                    "wrong_time",
                    f"the signed time {shown(date_time)} is not now; set the client's clock",
                )
        caller.user = user
        return caller

    def check(self, caller: Caller, request: Any) -> None:
        """Check that a caller may do what a request asks.

        Raises:
            StatusError: FORBIDDEN; UNAUTHORIZED, it was a user when it began to call, and is none now; what is wrong
                with the names in the request; TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND: it may not make what is not
                there.
        """
        row = DEMANDS.get(caller.method)
        if row is None:
            self._deny(caller, Code.FORBIDDEN, "no_row", f"no user may call {caller.method} while access is checked")
        caller.demands = row(request)
        self._check_user(caller)
        self._check_demands(caller)

    def check_again(self, caller: Caller) -> None:
        """Check the last request again, if the users have changed since.

        Raises:
            StatusError: as `check` does.
        """
        if caller.users is not self._file.content:
            self._check_user(caller)
            self._check_demands(caller)

    def user_of(self, call: Call) -> str:
        """Return the access key of an accepted call's user."""
        return claim_of(call.metadata.get(AUTHORIZATION, "")).access_key

    def has_user(self, access_key: str) -> bool:
        """Return whether there is a user of that name now."""
        return access_key in self._file.content

    def may_publish(self, caller: Caller, topic: str) -> bool:
        """Return whether the caller of a long stream may send to a topic now."""
        now = self._file.content.get(caller.user.access_key)
        return now is not None and now.secret == caller.user.secret and now.may(Right.PUBLISH, Sort.TOPIC, topic)

    def deny_client(self, call: Call, method: str, client_id: str) -> None:
        """Log and count the refusal of a call whose client id is another user's."""
        self._record_refusal(Caller(_NOBODY, method, call.peer, client_id, {}), self.user_of(call), "foreign_client_id")

    def tick(self) -> None:
        """Log the number of unlogged refusals; called about once a second."""
        self._log.log_unwritten()

    def _check_user(self, caller: Caller) -> None:
        """Check that a caller's user is unchanged."""
        users = self._file.content
        if caller.users is users:
            return
        now = users.get(caller.user.access_key)
        if now is None or now.secret != caller.user.secret:
            self._deny_caller(
                caller,
                caller.user.access_key,
                "no_longer_known",
                "the user was removed, or has another secret now; connect anew with what is valid",
            )
        caller.user, caller.users = now, users

    def _check_demands(self, caller: Caller) -> None:
        may = caller.user.may
        for demand in caller.demands:
            rights, sort, name, makes = demand
            if not (may(rights[0], sort, name) or any(may(right, sort, name) for right in rights[1:])):
                self._deny(
                    caller,
                    Code.FORBIDDEN,
                    "forbidden",
                    f"the user {caller.user.access_key} may not {' or '.join(rights)} with the {sort} {name}; a rule "
                    "of the access file would have to allow it",
                    demand,
                )
            if makes and self._is_missing(demand) and not may(Right.ADMIN, sort, name):
                raise StatusError(
                    Code.TOPIC_NOT_FOUND if sort is Sort.TOPIC else Code.CONSUMER_GROUP_NOT_FOUND,
                    f"the {sort} {name} does not exist, and the user {caller.user.access_key} may not make it; create "
                    "it first, or allow admin",
                )

    def _deny_caller(self, caller: Caller, access_key: str, reason: str, sentence: str) -> NoReturn:
        self._record_refusal(caller, access_key, reason)
        raise StatusError(Code.UNAUTHORIZED, sentence)

    def _deny(
        self, caller: Caller, code: Code.ValueType, reason: str, sentence: str, demand: Demand | None = None
    ) -> NoReturn:
        self._record_refusal(caller, caller.user.access_key, reason, demand)
        raise StatusError(code, sentence)

    def _record_refusal(self, caller: Caller, access_key: str, reason: str, demand: Demand | None = None) -> None:
        self._metrics.denied(caller.method, reason)
        asked = {} if demand is None else {"right": " or ".join(demand.rights), str(demand.sort): demand.name}
        self._log.denied(
            reason=reason,
            method=caller.method,
            user=shown(access_key),
            peer=caller.peer,
            client=shown(caller.client_id),
            **asked,
        )
