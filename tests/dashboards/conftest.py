"""Only `make test-dashboards` collects these tests: they need Chromium, and Grafana's packages from npm."""

from __future__ import annotations

import os

from tests.dashboards.inside import STATE
from tests.deploy.test_dashboards_live import (  # noqa: F401
    application,
    collector,
    loaded_cluster,
    prometheus,
    prometheus_program,
)

if STATE not in os.environ:
    collect_ignore_glob = ["test_*.py"]
