"""Login of a client at etcd by user and password.

etcd answers Authenticate with a token, which calls carry as metadata. A token may end at any time: etcd forgets it when
a member restarts, five minutes after its last use, and when its user changes; with `--auth-token=jwt` it ends after
its lifetime and whenever any user or role changes. etcd refuses the call then before it applies anything, so that the
call is sent again with a new token, writes included (PROTOCOL H79). A call that is in progress while any user or role
changes is refused as well ("revision of auth store is old", etcd-io/etcd#13300): it is sent again with the same token
first, because a password costs etcd a tenth of a second.

A stream of keep-alives carries the token with which it was opened; newer releases check it at each renewal. A watch is
checked when it is created; the view reads first, which renews an ended token. `etcd.EtcdMetastore` and the command
`headrace-coordinator etcd-auth` use this module; it belongs to their event loop.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from headrace.wire.errors import MetastoreUnavailableError, Outcome

from headrace_server.metastore import etcd3_stubs as stubs

MAX_SENDS = 6
"""Sends of one call that etcd refuses because of its token."""
_SENDS_BEFORE_RENEWAL = 3
LOGIN_SECONDS = 5.0
"""Timeout of one login, which ends the wait of all calls to its member; a call may wait less."""
NOT_ENABLED = "authentication is not enabled"
WRONG_PASSWORD = "authentication failed"
"""Texts of etcd's errors."""

Metadata = tuple[tuple[str, str], ...]


class EtcdRefusedError(MetastoreUnavailableError):
    """etcd refused a call because of its user, password or rights; nothing was applied. An operator must act."""

    def __init__(self, message: str, *, action: str) -> None:
        super().__init__(message, outcome=Outcome.NOT_APPLIED, action=action)


class NotAuthenticatedError(Exception):
    """A member did not answer Authenticate; the call was not sent. The message has the reason."""


class TokenRefusal(Enum):
    """Why etcd did not accept a token."""

    ENDED = 1
    MISSING = 2
    CHANGED = 3
    """A user or role changed since the token was made, or during the call."""


_REFUSALS = {
    "invalid auth token": TokenRefusal.ENDED,
    "user name is empty": TokenRefusal.MISSING,
    "revision of auth store is old": TokenRefusal.CHANGED,
    "revision in header is old": TokenRefusal.CHANGED,
}


def token_refusal(text: str | None) -> TokenRefusal | None:
    """Return the refusal that etcd's text states; `None` means another error."""
    return next((refusal for part, refusal in _REFUSALS.items() if part in (text or "")), None)


class EtcdLogin:
    """Current token of one user, shared by the connections to all members.

    Args:
        user: name of the user in etcd.
        password_file: file with the password; read at each login, so that a new password needs no restart.
    """

    def __init__(self, user: str, password_file: str) -> None:
        self.user = user
        self._password_file = password_file
        self._metadata: Metadata | None = None
        self._logins: dict[Any, asyncio.Task[Metadata]] = {}
        """Logins in progress by the stub of the member, so that a member that hangs delays none at another one."""

    def __repr__(self) -> str:
        return f"EtcdLogin({self.user!r})"

    async def send(self, auth: Any, method: Any, request: Any, try_s: float, timeout_s: float) -> Any:
        """Send a call with the token; again, with a new one if necessary, while etcd refuses the token.

        Args:
            auth: stub of the Auth service of the member.
            method: method of a stub of the member.
            request: its request.
            try_s: timeout of one attempt.
            timeout_s: timeout of all attempts and logins together.

        Raises:
            EtcdRefusedError: If etcd does not accept the user or the password.
            NotAuthenticatedError: If the member did not answer the login.
            grpc.aio.AioRpcError: Of the call itself.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for sent in range(1, MAX_SENDS + 1):
            metadata = await self.metadata(auth, deadline - loop.time())
            try:
                timeout = min(try_s, deadline - loop.time())
                return await method(request, timeout=timeout, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                refusal = token_refusal(error.details())
                if refusal is None or sent == MAX_SENDS:
                    raise
            if refusal is not TokenRefusal.CHANGED or sent >= _SENDS_BEFORE_RENEWAL:
                self.forget(metadata)
        raise AssertionError("the last attempt returns or raises")

    async def metadata(self, auth: Any, timeout_s: float) -> Metadata:
        """Return the metadata with the token, after a login if there is none; empty while etcd has no authentication.

        Calls to one member share a login, and its failure. Raises as `send`.
        """
        if self._metadata is not None:
            return self._metadata
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._login_at(auth))
        except TimeoutError:
            raise NotAuthenticatedError(f"no login within {timeout_s:.3g} s") from None

    def _login_at(self, auth: Any) -> asyncio.Task[Metadata]:
        """Return the login at a member, which is begun if there is none in progress."""

        def on_done(login: asyncio.Task[Metadata]) -> None:
            del self._logins[auth]
            if not login.cancelled() and login.exception() is None:
                self._metadata = login.result()

        if auth not in self._logins:
            self._logins[auth] = asyncio.create_task(self._authenticate(auth))
            self._logins[auth].add_done_callback(on_done)
        return self._logins[auth]

    @property
    def is_needed(self) -> bool:
        """Whether etcd required the user at the last login, as it is assumed before the first one."""
        return self._metadata != ()

    def forget(self, metadata: Metadata) -> None:
        """Log in again at the next call, unless that has happened since `metadata` was returned."""
        if self._metadata is metadata:
            self._metadata = None

    def request(self) -> Any:
        """Return the request for a token, with the password that the file has now. Raises as `read_password`."""
        return stubs.rpc_pb2.AuthenticateRequest(name=self.user, password=read_password(self._password_file))

    async def _authenticate(self, auth: Any) -> Metadata:
        try:
            answer = await auth.Authenticate(self.request(), timeout=LOGIN_SECONDS)
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            if NOT_ENABLED in details:
                return ()
            if WRONG_PASSWORD in details:
                raise EtcdRefusedError(
                    f"etcd does not accept the password in {self._password_file} for its user {self.user}",
                    action="Name the right file, or set this password in etcd.",
                ) from None
            raise NotAuthenticatedError(f"{error.code().name} {details}".strip()) from error
        return (("token", answer.token),)


def read_password(path: str) -> str:
    """Return the password in a file, without a newline at its end.

    Raises:
        EtcdRefusedError: If the file cannot be read or is empty.
    """
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EtcdRefusedError(
            f"cannot read the password file {path}: {reason}", action="Name a readable file with the password."
        ) from None
    if not password:
        raise EtcdRefusedError(
            f"the password file {path} is empty", action="Write the password of etcd's user into it."
        )
    return password
