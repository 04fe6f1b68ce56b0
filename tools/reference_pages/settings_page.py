"""Generator of docs/reference/settings.md: all settings of the services and of the SDK."""

from __future__ import annotations

from headrace.client.base.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ReaderConfig,
    TableConfig,
    describe,
)
from headrace_broker.settings import ENVIRON_PREFIX as BROKER_PREFIX
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import ENVIRON_PREFIX as COORDINATOR_PREFIX
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.settings import describe_settings

from reference_pages.markdown import table

_INTRO = """# Settings

## Services

A service takes each setting, in rising order of precedence, from its default, the TOML file given as `--config FILE`
(one top-level key per setting), the environment, and `--set name=value` on the command line. An unknown name is an
error that names the nearest known one, and so is a value out of range. The unit is the last part of a name."""

_SDK = """## SDK

Settings are keyword arguments of the class: `headrace.Producer(acks="all", linger_ms=20)`. An unknown name raises
`ConfigError` and names the nearest known one. The blocking and the asyncio classes take the same settings.

If the code does not set `bootstrap_servers`, the classes read `HEADRACE_BOOTSTRAP_SERVERS`,
`HEADRACE_SECURITY_PROTOCOL`, `HEADRACE_SSL_CAFILE`, `_CERTFILE`, `_KEYFILE`, `_SERVER_NAME`, `HEADRACE_API_KEY`,
`HEADRACE_API_KEY_FILE`, `HEADRACE_TOKEN_FILE`, `HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS` and `HEADRACE_TRANSPORT` from the
environment, as the command `headrace` does.

### All classes"""


def settings_body() -> str:
    """Return the page from its title."""
    return "\n\n".join(
        [
            _INTRO,
            f"### Broker\n\n`python -m headrace_broker`; in the environment `{BROKER_PREFIX}<NAME>`.",
            describe_settings(BrokerSettings).strip(),
            f"### Coordinator\n\n`python -m headrace_coordinator`; in the environment `{COORDINATOR_PREFIX}<NAME>`.",
            describe_settings(CoordinatorSettings).strip(),
            _SDK,
            _sdk_table(ClientConfig),
            *(f"### {name}\n\n{_sdk_table(cls, but=ClientConfig)}" for name, cls in _SDK_CLASSES),
        ]
    )


_SDK_CLASSES: tuple[tuple[str, type[ClientConfig]], ...] = (
    ("Producer", ProducerConfig),
    ("Consumer", ConsumerConfig),
    ("Reader", ReaderConfig),
    ("Table", TableConfig),
    ("Admin", AdminConfig),
)


def _sdk_table(cls: type[ClientConfig], but: type[ClientConfig] | None = None) -> str:
    """Return the table of the settings of `cls` without those of `but`."""
    known = {row.name for row in describe(but)} if but else set()
    rows = [
        (f"`{row.name}`", f"`{row.default}`", row.range, row.text) for row in describe(cls) if row.name not in known
    ]
    return table(("setting", "default", "range", "what it does"), rows) if rows else "Those of all classes."
