"""`python -m examples.demo`, from the top of a clone."""

from __future__ import annotations

import signal
import sys

import typer
from headrace.cli.common.stop_signals import stop_signals
from headrace.wire.errors import HeadraceError

from examples.demo.command import demo


def main() -> None:
    """Run the demo; print a `HeadraceError` on one line and exit with code 1."""
    app = typer.Typer(add_completion=False)
    app.command()(demo)
    try:
        with stop_signals(signal.SIGTERM, signal.SIGHUP):  # A clean exit stops the cluster.
            app(prog_name="python -m examples.demo")
    except HeadraceError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
