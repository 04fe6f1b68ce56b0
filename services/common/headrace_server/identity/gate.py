"""Decides for each call who it is from and whether it is served. One per server process; belongs to the event loop.

`Admission` and the native protocol ask it before they read a request; handlers ask the call's `Access` about the topics
and groups that the request names. What is decided without an identity or a right depends on the posture:
`open` serves everything, `observe` serves and counts, `required` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from headrace.v1 import auth_pb2
from headrace.wire.errors import (
    ErrorCode,
    MetastoreUnavailableError,
    NotAuthorizedError,
    Outcome,
    UnauthenticatedError,
)
from prometheus_client import Counter

from headrace_server.audit.audit_log import AuditLog
from headrace_server.audit.events import AuditEvent, describe_request, resources_of
from headrace_server.clock import Clock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.identity.callers import (
    ANONYMOUS,
    PROOF_NAMES,
    Caller,
)
from headrace_server.identity.identification import Identification
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.producer_owners import owner_tag, tag_of
from headrace_server.identity.quotas import MAX_HELD_SECONDS, Payer, Quotas, Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.methods import Method

IDENTITY = "identity"
"""What a call without one lacks, in place of a right."""
OWN_PRODUCER = "own producer id"
"""What a producer with the id of another user lacks, in place of a right."""
CANCELLED = "CANCELLED"
"""In place of the code of an error: the caller left before the call ended, which may have had its effect."""


class Counts(Protocol):
    """Metrics of decisions."""

    def refused(self, user: str, method: str) -> None:
        """Count a refused call or result."""

    def would_refuse(self, user: str, method: str, right: str) -> None:
        """Count one that `observe` served and `required` would have refused."""

    def held(self, user: str, use: str, seconds: float) -> None:
        """Count the time for which an answer was held by a quota."""


class IdentityGate:
    """See the module."""

    def __init__(
        self,
        view: IdentityView,
        cluster: ClusterIdentity,
        clock: Clock,
        counts: Counts,
        server_name: str,
        lost_events: Counter,
        *,
        least_posture: auth_pb2.Posture = auth_pb2.POSTURE_OPEN,
        rights_max_age_ms: int = 0,
    ) -> None:
        """`server_name` is such as `broker-1`, `lost_events` counts lost events of the audit log. `least_posture` is
        that of the settings; etcd may have a stricter one. `rights_max_age_ms`: see `ServiceSettings`.
        """
        self._server_name = server_name
        self.audit_log = AuditLog(lost_events, lambda: self.writes_audit, clock)
        self.view = view
        self.identification = Identification(view, cluster, clock, server_name)
        self._clock = clock
        self._counts = counts
        self.quotas = Quotas(view, counts.held)
        self._least_posture = least_posture
        self._rights_max_age_ms = rights_max_age_ms
        self._cluster_id = cluster.cluster_id

    @property
    def posture(self) -> auth_pb2.Posture:
        """The posture in force."""
        return max(self._least_posture, self.view.posture)

    @property
    def writes_audit(self) -> bool:
        """Whether events are written to the topic."""
        return self.posture != auth_pb2.POSTURE_OPEN

    # --- who ---

    def identify(self, token: str, certificate_names: Sequence[str], method: str, address: str) -> Caller:
        """Return the caller of a call as `Identification.caller`, and note a refusal, for both transports."""
        try:
            return self.identification.caller(token, certificate_names)
        except UnauthenticatedError as error:
            self.note_refusal(Access(self, ANONYMOUS, method, address), ErrorCode.UNAUTHENTICATED, error.message)
            raise

    # --- whether ---

    def admit(self, caller: Caller, name: str, row: Method, address: str = "") -> Access:
        """Return the access of a call of method `name` that is served.

        Raises:
            UnauthenticatedError: If it needs an identity, or the caller's does not hold any more.
            NotAuthorizedError: If it needs a right on the cluster that the caller has not.
            ThrottledError: If the user has far more requests or changes than its quota.
        """
        access = Access(self, caller, name, address, is_about_identity=row.is_about_identity)
        access.recheck()
        if row.uses_quota:
            access.check_quota(Use.REQUEST)
        if row.is_change:
            access.check_quota(Use.CHANGE)
        self._check_row(access, row)
        if row.is_act:
            self._check_rights_age(access)
        return access

    def admit_arrived(self, access: Access, row: Method) -> None:
        """Check what `admit` has checked once the request has arrived, for which its caller has half a minute, if users
        or grants have changed meanwhile; raise as that.
        """
        if access.version != self.view.version:
            access.version = self.view.version
            self.admit_further(access, row)

    def admit_further(self, access: Access, row: Method) -> None:
        """Check what `admit` has checked before a further message of a stream; raise as that."""
        access.recheck()
        self._check_row(access, row)

    @staticmethod
    def _check_row(access: Access, row: Method) -> None:
        if row.needs_identity and not access.caller.is_known:
            access.refuse_anonymous()
        if row.right is not None and row.right.kind is ResourceKind.CLUSTER:
            access.require(row.right.operation, ResourceKind.CLUSTER)

    def _check_rights_age(self, access: Access) -> None:
        """Refuse an administrative act while what is known of users is so old that its right may be gone.

        Raises:
            MetastoreUnavailableError: If it is.
        """
        if not self._rights_max_age_ms or access.caller.is_server or self.posture != auth_pb2.POSTURE_REQUIRED:
            return
        age_ms = self.view.source.age_ms()
        if age_ms > self._rights_max_age_ms:
            raise MetastoreUnavailableError(
                f"etcd has not been reached for {age_ms // 1000} s, and the caller's rights may have changed",
                outcome=Outcome.NOT_APPLIED,
            )

    def producer_tag(self, caller: Caller) -> int:
        """Return the tag in the producer ids of a caller; see `producer_owners`."""
        return tag_of(caller.identity.user, self._cluster_id)

    def note_refusal(self, refused: Access, code: ErrorCode, reason: str) -> None:
        """Count a refusal, and write it to the audit log; `reason` is the missing right, or what is wrong."""
        self._counts.refused(refused.caller.name, refused.method)
        self.audit_log.note_repeated(self._event(refused, "refusal", error=code.name, reason=reason))

    def note_data(self, served: Access, topic: str) -> None:
        """Write a call that reads or writes a topic to the audit log."""
        if self.writes_audit:
            self.audit_log.note_repeated(self._event(served, "data", resources=(f"topic:{topic}",)))

    def count_observed(self, observed: Access, right: str) -> None:
        """Count what would have been refused."""
        self._counts.would_refuse(observed.caller.name, observed.method, right)

    def note_act(self, done: Access, request: Any, response: Any, error: str) -> None:
        """Write an administrative act to the audit log."""
        resources = resources_of(request, response)
        described = describe_request(request) if self.writes_audit else None  # The log has no requests.
        self.audit_log.note_act(self._event(done, "act", error=error, resources=resources, request=described))

    def note_command(self, method: str, done: dict[str, str]) -> None:
        """Write to the audit log what a command has done directly in etcd, without a call."""
        event = AuditEvent(self._clock.now_ms(), self._server_name, "", "", "", method, "act", request=done)
        self.audit_log.note_act(event)

    def _event(self, access: Access, kind: str, **fields: Any) -> AuditEvent:
        identity = access.caller.identity
        return AuditEvent(
            self._clock.now_ms(),
            self._server_name,
            identity.user,
            PROOF_NAMES.get(identity.proof, ""),
            access.address,
            access.method,
            kind,
            request_id=access.request_id,
            **fields,
        )


def payer_of(caller: Caller, address: str) -> Payer | None:
    """Return whose quota a caller uses; `None` for servers: that of every user is for users."""
    user = caller.identity.user
    return None if caller.is_server else Payer(user, "" if user else address)


class Access:
    """What the caller of one call may do."""

    __slots__ = ("_gate", "_is_about_identity", "_payer", "act", "address", "caller", "method", "request_id", "version")

    def __init__(
        self, gate: IdentityGate, caller: Caller, method: str, address: str = "", *, is_about_identity: bool = False
    ) -> None:
        """`is_about_identity`: see `Method`."""
        self._gate = gate
        self._is_about_identity = is_about_identity
        self.caller = caller
        self.version = gate.view.version
        """Version of the view by which the call was admitted."""
        self._payer = payer_of(caller, address)
        self.method = method
        self.address = address
        self.act: Any = None
        """Request of an administrative act that has not ended; `None` for other calls."""
        self.request_id = ""

    @property
    def _posture(self) -> auth_pb2.Posture:
        return auth_pb2.POSTURE_REQUIRED if self._is_about_identity else self._gate.posture

    def is_proven(self, row: Method) -> bool:
        """Return whether the call shows that its caller is a client of the cluster: it needs an identity, and its
        caller has one. In the posture `open` all have.
        """
        return row.needs_identity and (self.caller.is_known or self._gate.posture == auth_pb2.POSTURE_OPEN)

    def refuse_anonymous(self) -> None:
        """Refuse a call without an identity, as the posture wants.

        Raises:
            UnauthenticatedError: If it is `required`.
        """
        match self._posture:
            case auth_pb2.POSTURE_OBSERVE:
                self._gate.count_observed(self, IDENTITY)
            case auth_pb2.POSTURE_REQUIRED:
                self.note_refusal(ErrorCode.UNAUTHENTICATED, IDENTITY)
                raise UnauthenticatedError("the call has no identity")

    def allows(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        """Return whether to serve an operation; count it if not, or if `required` would not."""
        return self.caller.allows(operation, kind, name) or self._serves_without(_right(operation, kind, name))

    def allows_all(self, operation: Operation, kind: ResourceKind, prefix: str) -> bool:
        """Return the same for every name with a prefix."""
        allowed = self.caller.allows_all(operation, kind, prefix)
        return allowed or self._serves_without(_right(operation, kind, f"{prefix}*"))

    def sees(self, kind: ResourceKind, name: str) -> bool:
        """Return whether a list shows a resource; nothing is counted."""
        return self._gate.posture != auth_pb2.POSTURE_REQUIRED or self.caller.allows(Operation.DESCRIBE, kind, name)

    def require(self, operation: Operation, kind: ResourceKind, name: str = "") -> None:
        """Refuse an operation on a resource, whether it exists or not.

        Raises:
            NotAuthorizedError: If the caller has no right to it.
        """
        if not self.allows(operation, kind, name):
            raise self._not_authorized(operation, f"{kind.value} {name[:249]}".rstrip())

    def require_all(self, operation: Operation, kind: ResourceKind, prefix: str) -> None:
        """Refuse an operation on every resource with a prefix; raise as `require`."""
        if not self.allows_all(operation, kind, prefix):
            raise self._not_authorized(operation, f"every {kind.value} whose name begins with {prefix[:249]!r}")

    @property
    def producer_tag(self) -> int:
        """See `IdentityGate.producer_tag`."""
        return self._gate.producer_tag(self.caller)

    def check_producer(self, producer_id: int) -> None:
        """Refuse a producer id that was drawn for another user. With the posture `open` every caller uses every id.

        Raises:
            NotAuthorizedError: If it is another user's.
        """
        tag = owner_tag(producer_id)
        if tag and tag != self.producer_tag and not self._serves_without(OWN_PRODUCER):
            raise NotAuthorizedError(
                f"producer id {producer_id} was drawn for another user", action="Get an id by InitProducerId."
            )

    def share_key(self, host: str) -> str:
        """Return who shares a server's time with others: the user, or the address of a caller without one."""
        caller = self.caller
        return f"user {caller.identity.user}" if caller.is_known and not caller.is_server else host

    def note_end(self, response: Any, error: str = "") -> None:
        """Write the call to the audit log, once, if it is an administrative act; `error` is the code of the error, if
        any, or `CANCELLED`.
        """
        request, self.act = self.act, None
        if request is not None:
            self._gate.note_act(self, request, response, error)

    def note_refusal(self, code: ErrorCode, reason: str) -> None:
        """See `IdentityGate.note_refusal`."""
        self._gate.note_refusal(self, code, reason)

    def note_data(self, topic: str) -> None:
        """Write to the audit log that the call reads or writes a topic; servers' own calls are left out."""
        if not self.caller.is_server:
            self._gate.note_data(self, topic)

    def check_quota(self, use: Use) -> None:
        """See `Quotas.check`."""
        if self._payer is not None:
            self._gate.quotas.check(self._payer, use)

    def charge(self, use: Use, amount: int = 1) -> None:
        """See `Quotas.charge`."""
        if self._payer is not None:
            self._gate.quotas.charge(self._payer, use, amount)

    def owes(self, use: Use) -> bool:
        """Whether `hold` would wait."""
        return self._payer is not None and self._gate.quotas.debt_seconds(self._payer, use) > 0

    async def hold(self, use: Use, most_seconds: float = MAX_HELD_SECONDS) -> int:
        """See `Quotas.hold`."""
        return 0 if self._payer is None else await self._gate.quotas.hold(self._payer, use, most_seconds)

    def recheck(self) -> None:
        """Compare the caller with what is known now, after a wait; raise as `Identification.check`, and note it."""
        try:
            self._gate.identification.check(self.caller)
        except UnauthenticatedError as error:
            self.note_refusal(ErrorCode.UNAUTHENTICATED, error.message)
            raise

    def _serves_without(self, right: str) -> bool:
        """Return whether the posture serves a call without a right, and count it."""
        posture = self._posture
        if posture == auth_pb2.POSTURE_OPEN:
            return True
        if posture == auth_pb2.POSTURE_REQUIRED:
            self.note_refusal(ErrorCode.NOT_AUTHORIZED, right)
            return False
        self._gate.count_observed(self, right)
        return True

    def _not_authorized(self, operation: Operation, what: str) -> NotAuthorizedError:
        name = (operation.name or "").lower()
        return NotAuthorizedError(f"{self.caller.name} has no grant of {name} for {what}")


def _right(operation: Operation, kind: ResourceKind, name: str) -> str:
    return f"{(operation.name or '').lower()} {kind.value}:{name[:249]}".rstrip(":")


_ACCESS: ContextVar[Access | None] = ContextVar("access", default=None)
set_access: Callable[[Access | None], object] = _ACCESS.set


current_access: Callable[[], Access | None] = _ACCESS.get
"""Returns the access of the call that the running task serves; `None` if it serves none."""


def access() -> Access:
    """Return the access of the call that the running task serves."""
    found = _ACCESS.get()
    assert found is not None, "no call is served, or its server did not admit it"
    return found
