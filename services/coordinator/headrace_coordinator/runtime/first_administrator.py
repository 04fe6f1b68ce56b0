"""The first administrator, and one that is made anew: by who can reach etcd, without any call.

`bootstrap` is the command `headrace-coordinator bootstrap-admin`. `ensure_api_key` is what a coordinator does at its
start with the file of `admin_api_key_file`, and with that of `monitor_api_key_file`, whose user reads metrics. Both
write the user and its grant. Belongs to the event loop; deadlines are in loop time, seconds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import structlog
from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, MetastoreUnavailableError, Outcome, TimedOutError
from headrace_server.identity import api_keys
from headrace_server.identity.api_keys import ApiKey
from headrace_server.identity.rights import ResourceKind
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import MetastoreRolledBackError, Put
from headrace_server.settings import SettingsError

from headrace_coordinator.core.identity_rules import MAX_API_KEYS, check_user_name, is_external
from headrace_coordinator.runtime.identity_store import with_api_keys
from headrace_coordinator.runtime.identity_writes import Change, IdentityWrites

log = structlog.get_logger(__name__)

BOOTSTRAP_ADMIN = "bootstrap-admin"
"""Who has granted what the command writes."""
ADMINISTRATOR = "admin"
ROLE = "admin"
MAX_FILE_BYTES = 1_024


class StartUser(NamedTuple):
    """User that has the API key in the file of a setting from the start on."""

    setting: str
    name: str
    role: str
    """Its role on the cluster."""


ADMIN = StartUser("admin_api_key_file", ADMINISTRATOR, ROLE)
MONITOR = StartUser("monitor_api_key_file", "monitor", "monitor")
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 0.5


def read_api_key(path: str, setting: str = ADMIN.setting) -> ApiKey:
    """Return the id and the hash of the API key in a file.

    Raises:
        SettingsError: If the file cannot be read or has none; the message does not contain what it has.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise SettingsError(
            f"cannot read {setting} {path}: {error.strerror}",
            action="Put the file there, readable for this process.",
        ) from error
    found = api_keys.parse_api_key(content)
    if found is None:
        raise SettingsError(
            f"{path} has no API key: hrk_, 12 letters and digits, _, and at least 43 letters and digits",
            action="Write a key of random characters there, in one line.",
        )
    return found


async def bootstrap(writes: IdentityWrites, user: str, api_key: ApiKey, deadline: float, *, recover: bool) -> None:
    """Make a user an administrator with one API key, and no other.

    Raises:
        ConflictError: If there is an administrator or a user of this name, without `recover`.
        InvalidRequestError: If no user can have this name.
        MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
    """
    check_user_name(user, writes.view.issuers)
    if is_external(user, writes.view.issuers):
        raise _refused(f"user {user} is identified elsewhere", "Name a user without the prefix of an issuer.")
    now_ms = writes.clock.now_ms()
    stored = _api_key(api_key, BOOTSTRAP_ADMIN, now_ms)

    async def decide(before: metadata_pb2.StoredUser | None) -> Change[metadata_pb2.StoredUser] | None:
        if before is not None and any(known.key_id == api_key.key_id for known in before.api_keys):
            return None  # An earlier attempt wrote it; its response was lost.
        if not recover and writes.has_administrator:
            raise _refused(
                "the cluster has an administrator",
                "Ask an administrator for an API key, or pass --recover if all are lost.",
            )
        if not recover and before is not None:
            raise _refused(f"there is a user {user} already", "Choose another name, or pass --recover to replace it.")
        after = metadata_pb2.StoredUser(name=user, created_ms=now_ms)
        if before is not None:
            after = with_api_keys(before, [])
            after.disabled = False
        after.api_keys.append(stored)
        grant = _grant(user, BOOTSTRAP_ADMIN, now_ms).SerializeToString(deterministic=True)
        return Change(after, also=(Put(writes.keyspace.grant(user, ROLE, ResourceKind.CLUSTER.value), grant),))

    await writes.rewrite(writes.keyspace.user(user), metadata_pb2.StoredUser, decide, deadline, f"creating user {user}")
    if recover:
        log.warning("administrator_recovered", user=user, key_id=api_key.key_id)
    else:
        log.info("administrator_created", user=user, key_id=api_key.key_id)


async def keep_api_key(writes: IdentityWrites, path: str, user: StartUser) -> None:
    """Do `ensure_api_key` with the key in a file; wait for etcd without a limit.

    Raises:
        SettingsError: As `read_api_key`.
    """
    api_key = read_api_key(path, user.setting)
    while True:
        try:
            return await ensure_api_key(writes, api_key, asyncio.get_running_loop().time() + TIMEOUT_SECONDS, user)
        except MetastoreRolledBackError:
            raise
        except (MetastoreUnavailableError, TimedOutError) as error:
            log.warning("start_user_not_written", user=user.name, cause=error.message)
            await asyncio.sleep(RETRY_SECONDS)


async def ensure_api_key(
    writes: IdentityWrites, api_key: ApiKey, deadline: float, start_user: StartUser = ADMIN
) -> None:
    """Let a user have this API key, at most one other, and its role on the cluster; it is not enabled.

    Raises:
        MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; repeat it.
    """
    now_ms = writes.clock.now_ms()

    async def decide(before: metadata_pb2.StoredUser | None) -> Change[metadata_pb2.StoredUser] | None:
        user = before or metadata_pb2.StoredUser(name=start_user.name, created_ms=now_ms)
        if any(found.sha256 == api_key.sha256 and not found.expires_ms for found in user.api_keys):
            return None
        others = [found for found in user.api_keys if found.key_id != api_key.key_id]
        others.sort(key=lambda found: found.created_ms)
        newest = others[-(MAX_API_KEYS - 1) :]
        return Change(with_api_keys(user, [*newest, _api_key(api_key, start_user.setting, now_ms)]))

    async def decide_grant(before: auth_pb2.Grant | None) -> Change[auth_pb2.Grant] | None:
        if before is not None and not before.expires_ms:
            return None
        return Change(_grant(start_user.name, start_user.setting, now_ms, start_user.role))

    user, _ = await writes.rewrite(
        writes.keyspace.user(start_user.name),
        metadata_pb2.StoredUser,
        decide,
        deadline,
        f"writing user {start_user.name}",
    )
    await writes.rewrite(
        writes.keyspace.grant(start_user.name, start_user.role, ResourceKind.CLUSTER.value),
        auth_pb2.Grant,
        decide_grant,
        deadline,
        f"granting {start_user.role} on the cluster to user {start_user.name}",
    )
    if user is not None and user.disabled:
        log.warning("start_user_disabled", user=start_user.name, action="Enable the user, or remove the setting.")


def _api_key(api_key: ApiKey, description: str, now_ms: int) -> metadata_pb2.StoredApiKey:
    return metadata_pb2.StoredApiKey(
        key_id=api_key.key_id, sha256=api_key.sha256, description=description, created_ms=now_ms
    )


def _grant(user: str, granted_by: str, now_ms: int, role: str = ROLE) -> auth_pb2.Grant:
    return auth_pb2.Grant(
        principal=user, role=role, resource=ResourceKind.CLUSTER.value, granted_by=granted_by, granted_ms=now_ms
    )


def _refused(message: str, action: str) -> ConflictError:
    return ConflictError(message, outcome=Outcome.NOT_APPLIED, retriable=False, action=action)
