"""Grants of the role `owner` to the users that create topics.

The grant is put in the transaction that makes the topic visible and deleted in the one that deletes it, so that a later
topic of the name belongs to who creates that one. In between it is a grant like any other: administrators see it and
may take it away. Belongs to the event loop.
"""

from __future__ import annotations

from headrace.v1 import auth_pb2
from headrace_server.clock import Clock
from headrace_server.identity.callers import Caller
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.rights import OWNER, ROLES, Operation, ResourceKind
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import CreateRevisionIs, Put

from headrace_coordinator.core.identity_rules import MAX_GRANTS, check_room, is_external
from headrace_coordinator.core.topic_writes import OwnerGrant

MAX_OWNED = MAX_GRANTS // 2
"""Number of grants of the cluster up to which owners get some: who creates topics leaves room for administrators."""


class TopicOwners:
    """Owners of topics that are created at one coordinator."""

    def __init__(self, view: IdentityView, keyspace: Keyspace, clock: Clock) -> None:
        self._view = view
        self._keyspace = keyspace
        self._clock = clock

    def new_owner(self, caller: Caller, name: str) -> str:
        """Return the user that will own a topic that it creates; empty for one whose grants cover that already.

        A caller that creates it by the posture alone, without a grant, owns nothing: it could prepare rights for later.

        Raises:
            MetadataLimitError: If the cluster has too many grants.
        """
        owned = [operation for operation in Operation if operation & ROLES[OWNER]]
        if caller.is_server or not caller.allows(Operation.CREATE, ResourceKind.TOPIC, name):
            return ""
        if all(caller.allows(operation, ResourceKind.TOPIC, name) for operation in owned):
            return ""
        check_room("grants", len(self._view.all_grants), MAX_OWNED)
        return caller.identity.user

    def grant(self, user: str, name: str) -> OwnerGrant | None:
        """Return the grant for a new topic; `None` if there is no such user."""
        if not user:
            return None
        key = self._keyspace.user(user)
        stored = self._view.source.get(key)
        if stored is None and not is_external(user, self._view.issuers):
            return None
        grant = auth_pb2.Grant(
            principal=user,
            role=OWNER,
            resource=f"{ResourceKind.TOPIC.value}:{name}",
            granted_by=user,
            granted_ms=self._clock.now_ms(),
        )
        put = Put(self._keyspace.grant(user, OWNER, grant.resource), grant.SerializeToString(deterministic=True))
        return OwnerGrant(user, put, () if stored is None else (CreateRevisionIs(key, stored.create_revision),))
