"""`python -m examples.demo`, from the top of a clone."""

from __future__ import annotations

import signal
import sys

import typer
from headrace.wire.errors import HeadraceError

from examples.demo.command import demo


def stop_on_signal(number: int, _frame: object) -> None:
    """End in order, so that the cluster is stopped."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the demo; a typed error is one line and exit code 1."""
    signal.signal(signal.SIGTERM, stop_on_signal)
    signal.signal(signal.SIGHUP, stop_on_signal)
    app = typer.Typer(add_completion=False)
    app.command()(demo)
    try:
        app(prog_name="python -m examples.demo")
    except HeadraceError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
