"""Settings of a process: a frozen dataclass, filled from a TOML file, the environment and the command line.

A service describes its settings as a frozen, slotted, keyword-only dataclass whose fields are `Annotated` with
pydantic's `Field`: `description` (one sentence), range (`ge`, `le`, ...), and a default where there is one. The unit is
the last part of the name. Relations between fields are checked in `__post_init__`, which raises `ValueError`.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class BrokerSettings:
        broker_id: Annotated[int, Field(ge=0, description="The broker's id, unique in the cluster.")]
        lease_ttl_ms: Annotated[int, Field(ge=2_000, description="...")] = 10_000

Only `load_settings` reads settings files and the environment. pydantic converts text, checks ranges and reports all
invalid values at once. pydantic-settings is not used because it ignores unknown variables; an unknown setting must be
an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from headrace.wire.errors import InvalidConfigError
from headrace.wire.suggestions import nearest_name
from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

SettingsT = TypeVar("SettingsT")
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
"""User and password of a URL."""


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
"""List setting: an array in TOML, `a,b,c` in the environment and on the command line."""


def _check_published(address: str) -> str:
    if not address:
        return address
    try:
        host, port = split_address(address)
    except SettingsError as error:
        raise ValueError(error.message) from error
    if port == 0 or "/" in host or (":" in host and not host.startswith("[")):
        raise ValueError(f"{address!r} is not an address of the form host:port, or [IPv6 address]:port")
    if _is_wildcard(host):
        raise ValueError(f"no client can connect to {host}; give the host at which others reach this process")
    return address


PublishedAddress = Annotated[str, AfterValidator(_check_published)]
"""Address setting that others connect to, `host:port`; empty for a default."""


class SettingsError(InvalidConfigError):
    """The settings are invalid; the message names each one and its source. Correct them and restart."""


def load_settings(
    cls: type[SettingsT],
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    environ_prefix: str = "",
    overrides: Mapping[str, object] | Sequence[str] = (),
) -> SettingsT:
    """Return an instance of `cls` from, in ascending precedence: defaults, file, environment, overrides.

    Args:
        cls: a frozen dataclass as described in the module.
        config_file: a TOML file with one top-level key per setting; `None` means no file.
        environ: usually `os.environ`; `None` means no environment.
        environ_prefix: such as `HEADRACE_BROKER_`; each variable with it must name a setting in upper case.
        overrides: a mapping, or `name=value` strings as for `--set`.

    Raises:
        SettingsError: If a name is unknown (the message has the nearest one), a value has the wrong type or is out of
            range, a setting is missing, a relation is violated, or the file is unreadable.
    """
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, layer in (
        (str(config_file), _read_file(config_file)),
        ("the environment", _read_environ(environ or {}, environ_prefix)),
        ("the command line", _read_overrides(overrides)),
    ):
        for name, value in layer.items():
            if name not in known:
                shown = environ_prefix + name.upper() if origin == "the environment" else name
                raise SettingsError(
                    f"unknown setting {shown} in {origin}{_nearest(name, known)}",
                    action="Correct or remove it; docs/reference/settings.md lists all settings.",
                )
            values[name] = value
            origins[name] = origin
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise SettingsError(
            "; ".join(_describe_error(detail, origins, environ_prefix) for detail in error.errors(include_url=False)),
            action="Correct the settings and start again; docs/reference/settings.md lists all of them.",
        ) from error


def describe_settings(cls: type[Any]) -> str:
    """Return a markdown table of all settings of `cls`: name, type, default, range, documentation."""
    lines = ["| setting | type | default | range | what it does |", "| --- | --- | --- | --- | --- |"]
    hints = typing.get_type_hints(cls, include_extras=True)
    # A class's own settings precede the inherited ones.
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in cls.__annotations__):
        base, infos = _unwrap(hints[field.name])
        description = " ".join(info.description for info in infos if info.description)
        assert description, f"{cls.__name__}.{field.name} has no description"
        bounds = ", ".join(text for info in infos for text in _bounds(info))
        if field.default is not dataclasses.MISSING:
            default = _show(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = _show(field.default_factory())
        else:
            default = "required"
        lines.append(f"| `{field.name}` | {_type_name(base)} | {default} | {bounds or ''} | {description} |")
    return "\n".join(lines) + "\n"


def settings_as_text(settings: Any) -> dict[str, str]:
    """Return the settings of a process by name, for administrators: a password in a URL is left out."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for name, value in values.items()
    }
    return {name: _IN_URL.sub("[left out]", text) for name, text in texts.items()}


def _nearest(name: str, known: Sequence[str]) -> str:
    nearest = nearest_name(name, known)
    return f"; did you mean {nearest}?" if nearest else ""


def _read_file(config_file: Path | None) -> dict[str, Any]:
    if config_file is None:
        return {}
    try:
        with config_file.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {config_file}: {error.strerror}",
            action="Give the path of a readable TOML file.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the settings file {config_file} is not TOML: {error}", action="Correct the file and restart."
        ) from error


def _read_environ(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    if not prefix:
        return {}
    return {name[len(prefix) :].lower(): value for name, value in sorted(environ.items()) if name.startswith(prefix)}


def _read_overrides(overrides: Mapping[str, object] | Sequence[str]) -> dict[str, object]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    values: dict[str, object] = {}
    for item in overrides:
        name, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"{item!r} is not of the form name=value", action="Write --set name=value.")
        values[name.strip()] = value
    return values


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`; an IPv6 host is in brackets and keeps them.

    Raises:
        SettingsError: If the address is malformed.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{address!r} is not an address of the form host:port", action="Write host:port.")
    return host, int(port)


def check_advertised_address(listen: str, advertised_address: str) -> None:
    """Check that clients can connect to the published address, before a service starts.

    Raises:
        SettingsError: If `listen` is the wildcard address (0.0.0.0, [::]) and `advertised_address` is empty.
    """
    if _is_wildcard(listen.rpartition(":")[0]) and not advertised_address:
        raise SettingsError(
            f"listen is {listen}, to which no client can connect, and advertised_address is empty",
            action="Set advertised_address to the host and port at which clients reach this process.",
        )


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False  # A host name, or malformed, so that binding fails.


def _describe_error(detail: Mapping[str, Any], origins: Mapping[str, str], environ_prefix: str) -> str:
    location = [str(part) for part in detail["loc"]]
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not message[:2].isupper():  # Keep an acronym in capitals.
        message = message[:1].lower() + message[1:]
    if not location:
        return message
    name = location[0]
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{name} is not set (in the file, as {environ_prefix}{name.upper()}, or with --set {name}=...)"
    return f"{name} = {detail['input']!r} (from {origins.get(name, 'the defaults')}): {message}"


def _unwrap(hint: object) -> tuple[object, list[FieldInfo]]:
    """Return the bare type of an annotation and pydantic's field infos, outermost last."""
    infos: list[FieldInfo] = []
    while typing.get_origin(hint) is Annotated:
        hint, *metadata = typing.get_args(hint)
        infos = [item for item in metadata if isinstance(item, FieldInfo)] + infos
    return hint, infos


def _bounds(info: FieldInfo) -> list[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤"}
    found = []
    for constraint in info.metadata:
        for attribute, sign in signs.items():
            value = getattr(constraint, attribute, None)
            if value is not None:
                found.append(f"{sign} {value}")
    return found


def _type_name(hint: object) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if origin is tuple:
        return "list"
    names = {int: "integer", str: "string", bool: "boolean", float: "number", Path: "path"}
    if isinstance(hint, type) and hint in names:
        return names[hint]
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    return " or ".join(_type_name(argument) for argument in arguments) if arguments else str(hint)


def _show(value: object) -> str:
    if value in ("", ()):
        return '`""`'
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"
