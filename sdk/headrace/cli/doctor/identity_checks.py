"""Checks of `headrace doctor` on who may call: the posture of each process, and the caller's credential. Pure."""

from collections.abc import Iterator, Sequence

from headrace.cli.common.findings import Finding, Status, judged
from headrace.client.admin.identity import CallerDescription
from headrace.client.admin.processes import ProcessDescription
from headrace.wire.addresses import is_loopback
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError

_SERVED = {
    "open": "every call is served",
    "observe": "every call is served, and those that `required` would refuse are counted",
    "required": "calls without an identity or a right are refused",
}
_ACTIONS = {
    "open": "Any program that reaches the port may do everything. Create users and grants, then run "
    "`headrace auth posture observe`.",
    "observe": "When no refusal is counted any more, run `headrace auth posture required`.",
}
CALLER = "this machine"
_OPEN = {
    "clients_without_tls": ("clients connect without TLS", "Set tls_cert_file and tls_key_file."),
    "servers_without_tls": (
        "brokers and coordinators connect without TLS",
        "Set internal_tls_cert_file, internal_tls_key_file and internal_tls_ca_file.",
    ),
    "etcd_without_tls": ("it connects to etcd without TLS", "Use an etcd with TLS, and set etcd_tls_ca_file."),
    "etcd_without_users": (
        "etcd serves everyone who reaches it",
        "Set etcd_user and etcd_password_file, then run `headrace-coordinator etcd-auth --enable --apply`.",
    ),
    "metrics_without_identity": (
        "metrics are served to everyone who reaches them",
        "Set posture = required, or metrics_listen to a loopback address.",
    ),
    "metrics_without_tls": ("metrics and the keys of their readers are sent without TLS", "Set metrics_tls = true."),
}


def check_postures(processes: Sequence[ProcessDescription]) -> Iterator[Finding]:
    """Yield a finding for each process whose posture is known: a warning if it serves strangers beyond loopback."""
    for process in processes:
        served = _SERVED.get(process.posture)
        if served is None:
            continue
        action = "" if is_loopback(process.address) else _ACTIONS.get(process.posture, "")
        where = "; its address is on loopback" if process.posture in _ACTIONS and not action else ""
        status = Status.WARNING if action else Status.OK
        yield Finding("posture", process.name, status, f"{process.posture}: {served}{where}", action)


def check_open_access(processes: Sequence[ProcessDescription]) -> Iterator[Finding]:
    """Yield a warning for each process and what it leaves open beyond loopback."""
    for process in processes:
        for name in process.open_access:
            shown, action = _OPEN.get(name, (name, "Upgrade the command line, which does not know this."))
            yield Finding("access", process.name, Status.WARNING, shown, action)


def check_credential(credential: str | None, caller: CallerDescription) -> Finding:
    """Return the finding about the credential of the caller, as the cluster sees it.

    `credential` names its setting, without a secret; `None` means that none is configured.
    """
    if caller.user:
        by = f" by {caller.identified_by}" if caller.identified_by else ""
        shown = f"{credential or 'the connection'} is accepted: user {caller.user}{by}"
        return Finding("credential", CALLER, Status.OK, shown)
    if credential is not None:
        return Finding(
            "credential",
            CALLER,
            Status.WARNING,
            f"the cluster does not identify the caller by {credential}",
            "Let an administrator give it a user: `headrace user create`.",
        )
    return judged(
        "credential",
        CALLER,
        Status.OK if caller.posture == "open" else Status.WARNING,
        "none is configured",
        "Log in (`headrace auth login`), or set HEADRACE_API_KEY_FILE.",
    )


def check_refusal(credential: str | None, error: UnauthenticatedError | NotAuthorizedError) -> Finding:
    """Return the finding about a caller to whom the cluster refused a call: its credential, or its rights."""
    named = credential or "none is configured"
    if isinstance(error, NotAuthorizedError):
        action = error.action or "Ask an administrator for the role `monitor` on the cluster."
        return Finding("rights", CALLER, Status.FAILURE, error.message, action)
    action = error.action or "Ask an administrator for another credential."
    return Finding("credential", CALLER, Status.FAILURE, f"{named}: {error.message}", action)
