"""Generator of docs/reference/jobs.md: all options of the Spark jobs, read from their commands."""

from __future__ import annotations

import typer
from spark_jobs.access_log import access_log
from spark_jobs.audit import audit
from spark_jobs.command import job_app
from spark_jobs.load import load
from spark_jobs.table_load import table_load
from spark_jobs.workload import workload

from reference_pages.commands_page import commands_text, leaves
from spark_jobs import windows

_INTRO = """# Options of the jobs

Every option of the jobs on Spark. [The guide](../guides/jobs.md) describes the jobs."""
_SHARED = ("bootstrap_servers", "master", "quiet", "as_json")


def jobs_body() -> str:
    """Return the page from its title."""
    apps = {
        "load": job_app(load),
        "table_load": job_app(table_load),
        "audit": job_app(audit),
        "windows": windows.app,
        "access_log": job_app(access_log),
        "workload": job_app(workload),
    }
    commands = [
        found
        for name, app in apps.items()
        for found in leaves(typer.main.get_command(app), ("python -m", f"spark_jobs.{name}"))
    ]
    return commands_text(_INTRO, commands, _SHARED)
