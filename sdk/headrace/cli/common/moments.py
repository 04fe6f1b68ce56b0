"""Times and lifetimes for people, of users, keys, grants and reads. Pure, except for the clock of `after`."""

import time
from datetime import UTC, datetime

from headrace.cli.common.session import UsageProblem

_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MAX_LIFETIME_MS = 100 * 365 * 86_400_000


def moment_text(at_ms: int) -> str | None:
    """Return a time in ms since 1970 as text, `None` for 0."""
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def lifetime_ms(text: str | None, option: str = "--expires") -> int:
    """Parse a duration of `option`, such as `90d` or `12h`; return 0 if it is not given.

    Raises:
        UsageProblem: If it is no duration, or longer than a century.
    """
    if text is None:
        return 0
    number, unit = text[:-1], text[-1:]
    if (
        unit not in _UNIT_MS
        or not number.isascii()
        or not number.isdigit()
        or not 0 < len(number) < 9
        or not int(number)
    ):
        raise UsageProblem(f"{option} {text!r} is no duration in minutes, hours, days or weeks, for example 90d")
    found = int(number) * _UNIT_MS[unit]
    if found > MAX_LIFETIME_MS:
        raise UsageProblem(f"{option} {text!r} is more than a century")
    return found


def after(lifetime: int) -> int:
    """Return the time in ms since 1970 at which a lifetime that begins now ends; 0 if the lifetime is 0."""
    return time.time_ns() // 1_000_000 + lifetime if lifetime else 0


def offset_or_time(text: str | None, option: str) -> int | datetime | None:
    """Parse the value of `option`: an offset, or a time in ISO 8601, without a zone in UTC.

    Raises:
        UsageProblem: If it is neither.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(
            f"{option} {text!r} is neither an offset nor a time, for example 2026-11-21T10:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
