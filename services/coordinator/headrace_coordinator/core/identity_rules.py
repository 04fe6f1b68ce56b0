"""Rules for users, API keys, grants, roles and issuers: what may be stored. Pure.

A name with a colon may be that of a user of an issuer (`ISSUER:CLAIM`) or of a certificate (`certificate:NAME`), whose
proof of identity is elsewhere. These have no API keys, so that whatever ends an identity at its issuer ends it here.
Names of the form `group:NAME` are groups and never users: a user of this name would have the group's grants.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError, MetadataLimitError, Outcome
from headrace_server.identity.identity_view import GROUP_PREFIX
from headrace_server.identity.quotas import EVERY_USER, Use
from headrace_server.identity.rights import ROLES, Operation, parse_operations, parse_pattern
from headrace_server.internal_v1 import metadata_pb2

CERTIFICATE = "certificate"
MAX_USERS = 100_000
MAX_GRANTS = 100_000
MAX_ROLES = 1_000
MAX_ISSUERS = 100
MAX_QUOTAS = 10_000
MAX_API_KEYS = 2
"""A user has a second API key while it replaces the first one."""
MAX_NAME_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_GROUPS = 64
MAX_CERTIFICATE_NAMES = 16
MAX_URL_CHARACTERS = 2_048
MAX_CA_BYTES = 256 << 10
MAX_LIFETIME_MS = 100 * 365 * 86_400_000
ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures that are accepted (RFC 7518, 3.1; RFC 8037). HMAC would let every verifier sign, `none` everyone."""

_USER = re.compile(r"[a-zA-Z0-9._@+:/-]{1,128}\Z", re.ASCII)
_SHORT_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z", re.ASCII)
_RESERVED = ("anonymous", CERTIFICATE, "cluster", "group", "server", "topic", "user")
"""Prefixes of names that mean something else."""


def is_external(name: str, issuers: Collection[str]) -> bool:
    """Return whether an issuer or a certificate names this user."""
    prefix, colon, rest = name.partition(":")
    return bool(colon and rest) and (prefix == CERTIFICATE or prefix in issuers)


def check_user_name(name: str, issuers: Collection[str]) -> None:
    """Check the name of a user.

    Raises:
        InvalidRequestError: If no user can have it.
    """
    if name.startswith(GROUP_PREFIX) or name == "anonymous":
        raise InvalidRequestError(f"no user can have the name {name[:64]!r}", action="Choose another name.")
    if is_external(name, issuers):
        if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidRequestError(
                f"{name[:64]!r} is no user of an issuer or certificate",
                action=f"Give the prefix and the name, at most {MAX_NAME_CHARACTERS} printable characters.",
            )
    elif not _USER.match(name):
        raise InvalidRequestError(
            f"{name[:64]!r} is no name of a user",
            action="Use 1 to 128 of the characters a-z A-Z 0-9 . _ - @ + : /, or the name of an issuer and a colon.",
        )


def check_user(user: auth_pb2.User, issuers: Collection[str]) -> None:
    """Check a user that is created or changed.

    Raises:
        InvalidRequestError: If it breaks a rule; the message names the field.
    """
    check_user_name(user.name, issuers)
    check_text("the description", user.description, MAX_DESCRIPTION_CHARACTERS)
    _check_names("groups", user.groups, MAX_GROUPS)
    _check_names("certificate_names", user.certificate_names, MAX_CERTIFICATE_NAMES)
    if user.certificate_names and is_external(user.name, issuers):
        raise InvalidRequestError(
            f"{user.name[:64]!r} is identified elsewhere and cannot have certificate_names",
            action="Give them to a user without the prefix of an issuer or certificate.",
        )


def check_lifetime(lifetime_ms: int) -> None:
    """Check the lifetime of an API key.

    Raises:
        InvalidRequestError: If it is out of range.
    """
    if not 0 <= lifetime_ms <= MAX_LIFETIME_MS:
        raise InvalidRequestError(
            f"lifetime_ms = {lifetime_ms} is not between 0 and {MAX_LIFETIME_MS}",
            action="Give the milliseconds from now, or 0 for a key that does not expire.",
        )


def check_own_lifetime(lifetime_ms: int, own: metadata_pb2.StoredApiKey) -> None:
    """Check the lifetime of an API key that a user creates by its API key `own`: one that ends makes none that stays.

    Raises:
        InvalidRequestError: If it is longer than that of `own`.
    """
    longest_ms = own.expires_ms - own.created_ms
    if own.expires_ms and not 0 < lifetime_ms <= longest_ms:
        raise InvalidRequestError(
            f"lifetime_ms = {lifetime_ms} is not between 1 and {longest_ms}, the lifetime of the API key of this call",
            action="Give a lifetime that is not longer, or ask an administrator for a key.",
        )


def check_further_key(user: str, api_keys: Sequence[metadata_pb2.StoredApiKey]) -> None:
    """Check that a user may have another API key besides these.

    Raises:
        ConflictError: If it has two; the message names them.
    """
    if len(api_keys) >= MAX_API_KEYS:
        ids = " and ".join(api_key.key_id for api_key in api_keys)
        raise ConflictError(
            f"user {user} has {len(api_keys)} API keys, {ids}",
            outcome=Outcome.NOT_APPLIED,
            retriable=False,
            action="Delete the one that is not used any more.",
        )


def check_certificate_names(user: auth_pb2.User, others: Iterable[str]) -> None:
    """Check that no other user has the names of certificates that a user is to get; `others` are those that have.

    Raises:
        ConflictError: If one has.
    """
    taken = sorted(set(others) - {user.name})
    if taken:
        raise ConflictError(
            f"user {taken[0]} has one of these certificate_names",
            outcome=Outcome.NOT_APPLIED,
            retriable=False,
            action="A certificate must identify one user: take the name from the other user first.",
        )


def check_grant(grant: auth_pb2.Grant, roles: Mapping[str, Operation], issuers: Collection[str], now_ms: int) -> None:
    """Check a grant that is added; `roles` are those of the cluster, also those built in.

    Raises:
        InvalidRequestError: If it breaks a rule.
    """
    if grant.principal.startswith(GROUP_PREFIX):
        _check_names("a group", [grant.principal.removeprefix(GROUP_PREFIX)], 1)
    else:
        check_user_name(grant.principal, issuers)
    parse_operations(grant.role, roles)
    parse_pattern(grant.resource)
    if grant.expires_ms and grant.expires_ms <= now_ms:
        raise InvalidRequestError(
            f"expires_ms = {grant.expires_ms} is not in the future",
            action="Give milliseconds since 1970, or 0 for a grant that does not expire.",
        )


def check_role(role: auth_pb2.Role) -> None:
    """Check a role that is created or changed.

    Raises:
        InvalidRequestError: If it is built in, has the name of an operation, or names no or unknown operations.
    """
    name = role.name
    if name in ROLES:
        raise InvalidRequestError(f"role {name} is built in and cannot be changed", action="Choose another name.")
    if not _SHORT_NAME.match(name) or _is_operation(name):
        raise InvalidRequestError(
            f"{name[:64]!r} is no name of a role",
            action="Use 1 to 63 of the characters a-z A-Z 0-9 . _ -, and not the name of an operation.",
        )
    if not role.operations:
        raise InvalidRequestError(f"role {name} has no operations", action="Name at least one.")
    for operation in role.operations:
        parse_operations(operation, {})


def check_issuer(issuer: auth_pb2.Issuer, others: Iterable[auth_pb2.Issuer], users: Iterable[str]) -> None:
    """Check an issuer that is accepted; `users` are the names of users that have API keys or certificates.

    Raises:
        InvalidRequestError: If it breaks a rule; the message names the field.
        ConflictError: If another issuer has the same `issuer`, or a user that it could name exists.
    """
    name = issuer.name
    if not _SHORT_NAME.match(name) or name in _RESERVED:
        raise InvalidRequestError(
            f"{name[:64]!r} is no name of an issuer",
            action=f"Use 1 to 63 of the characters a-z A-Z 0-9 . _ -, and none of {', '.join(_RESERVED)}.",
        )
    for field, limit in (("issuer", MAX_URL_CHARACTERS), ("audience", MAX_URL_CHARACTERS)):
        if not getattr(issuer, field):
            raise InvalidRequestError(
                f"the issuer has no {field}", action=f"Set {field}; it must match a claim exactly."
            )
        check_text(field, getattr(issuer, field), limit)
    _check_keys_url(issuer)
    unknown = [algorithm for algorithm in issuer.algorithms if algorithm not in ALGORITHMS]
    if unknown:
        raise InvalidRequestError(
            f"{unknown[0][:32]!r} is no algorithm that is accepted", action=f"Name some of {', '.join(ALGORITHMS)}."
        )
    for field in ("user_claim", "groups_claim"):
        check_text(field, getattr(issuer, field), 128)
    for other in others:
        if other.name != name and other.issuer == issuer.issuer:
            raise _exists(f"issuer {other.name} has the same issuer {issuer.issuer}", "Change that one.")
    taken = next((user for user in users if user.startswith(f"{name}:")), None)
    if taken is not None:
        raise _exists(f"there is a user {taken[:64]}, whom this issuer could name, too", "Choose another name.")


def check_quota(quota: auth_pb2.Quota, issuers: Collection[str]) -> None:
    """Check the quota of a user, or of every user.

    Raises:
        InvalidRequestError: If no user can have the name, or a rate is negative.
    """
    if quota.user != EVERY_USER:
        check_user_name(quota.user, issuers)
    for field in (*(use.value for use in Use), "connections"):
        if getattr(quota, field) < 0:
            raise InvalidRequestError(f"{field} = {getattr(quota, field)} is negative", action="Give 0 for no bound.")


def check_room(what: str, count: int, limit: int) -> None:
    """Check that the cluster may have one more of a kind, of which it has `count`.

    Raises:
        MetadataLimitError: If it has as many as it may have.
    """
    if count >= limit:
        raise MetadataLimitError(
            f"there are {count} {what}, as many as a cluster may have", action="Delete some first."
        )


def check_text(field: str, text: str, limit: int) -> None:
    """Check a text for people.

    Raises:
        InvalidRequestError: If it is too long or not printable.
    """
    if len(text) > limit or not text.isprintable():
        raise InvalidRequestError(f"{field} is not at most {limit} printable characters")


def _check_keys_url(issuer: auth_pb2.Issuer) -> None:
    url = issuer.keys_url
    if not url.startswith(("https://", "/")) or len(url) > MAX_URL_CHARACTERS or not url.isprintable() or " " in url:
        raise InvalidRequestError(
            f"keys_url {url[:64]!r} is neither an https URL nor the absolute path of a file",
            action="Name the issuer's key set, or its /.well-known/openid-configuration.",
        )
    if len(issuer.keys_ca_pem) > MAX_CA_BYTES:
        raise InvalidRequestError(f"keys_ca_pem has more than {MAX_CA_BYTES} bytes", action="Give one CA certificate.")


def _check_names(field: str, names: Sequence[str], limit: int) -> None:
    if len(names) > limit:
        raise InvalidRequestError(f"there are {len(names)} {field}, more than {limit}")
    for name in names:
        if not name:
            raise InvalidRequestError(f"{field}: a name is empty")
        check_text(field, name, MAX_NAME_CHARACTERS)


def _is_operation(name: str) -> bool:
    try:
        parse_operations(name, {})
    except InvalidRequestError:
        return False
    return True


def _exists(message: str, action: str) -> ConflictError:
    return ConflictError(message, outcome=Outcome.NOT_APPLIED, retriable=False, action=action)
