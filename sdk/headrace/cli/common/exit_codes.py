"""Table of the exit codes of `headrace`: code, meaning, and the errors that cause it.

`headrace help exit-codes` prints the same table, which is also in docs/guides/command-line.md.
"""

import enum

from headrace.wire.errors import ErrorCode, HeadraceError, TransportError


class ExitCode(enum.IntEnum):
    """Exit code of the command. The numbers are stable; new ones may be added."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    UNHEALTHY = 5
    TIMED_OUT = 6
    ALREADY_EXISTS = 7
    DENIED = 8
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "Success.",
    ExitCode.FAILED: "The cluster rejected the request, or a part of it failed; the message contains the next step.",
    ExitCode.USAGE: "The command line or its input is wrong; nothing was sent.",
    ExitCode.UNREACHABLE: "No broker or coordinator could be reached, or no local cluster is running.",
    ExitCode.NOT_FOUND: "The topic, partition, broker, group, schema, grant, role, issuer or quota does not exist.",
    ExitCode.UNHEALTHY: "`cluster health` or `doctor` found a problem.",
    ExitCode.TIMED_OUT: "No response in time, or the awaited state was not reached; a change may still take effect.",
    ExitCode.ALREADY_EXISTS: "The topic already exists.",
    ExitCode.DENIED: "No credential, one that is not accepted, or no right to do this; also the answer no of `can`.",
    ExitCode.INTERRUPTED: "Interrupted from the keyboard (Ctrl-C).",
    ExitCode.BROKEN_PIPE: "The reader of the output closed it, as in `headrace consume ... | head`.",
}

_BY_ERROR_CODE: dict[ErrorCode, ExitCode] = {
    ErrorCode.UNKNOWN_TOPIC: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_PARTITION: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_BROKER: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_GROUP: ExitCode.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: ExitCode.ALREADY_EXISTS,
    ErrorCode.TIMED_OUT: ExitCode.TIMED_OUT,
    ErrorCode.UNAUTHENTICATED: ExitCode.DENIED,
    ErrorCode.NOT_AUTHORIZED: ExitCode.DENIED,
}


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a command."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case TimeoutError():
            return ExitCode.TIMED_OUT
        case HeadraceError():
            return _of_headrace_error(error)
        case _:
            return ExitCode.FAILED


def _of_headrace_error(error: HeadraceError) -> ExitCode:
    # Imported here because the SDK is loaded only by commands that use it.
    from headrace.client.base.errors import ConfigError, NoBrokersAvailableError

    if isinstance(error, NoBrokersAvailableError | TransportError):
        return ExitCode.UNREACHABLE
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    if getattr(error, "status", 0) == 404:  # of the schema registry
        return ExitCode.NOT_FOUND
    return _BY_ERROR_CODE.get(error.code, ExitCode.FAILED)


def exit_code_table() -> str:
    """Return the table as text, one code per line."""
    return "".join(f"{code:>4}  {code.name.lower():<15} {meaning}\n" for code, meaning in MEANINGS.items())
