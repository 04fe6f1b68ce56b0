"""Generator of the eight dashboards: python -m deploy.grafana.dashboards [--check].

The dashboards are committed as JSON in the chart, which renders ConfigMaps; docker-compose.yml mounts the same files. A
test fails if they are stale or use a metric that does not exist.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.boards import brokers, clients, control, groups, overview, replication, storage, topics
from deploy.grafana.panels import build

FOLDER = Path(__file__).resolve().parents[1] / "helm" / "headrace" / "files" / "dashboards"
DASHBOARDS = tuple(each.BOARD for each in (overview, brokers, replication, topics, groups, storage, control, clients))


def texts() -> dict[Path, str]:
    """Return the expected content of each file."""
    return {
        FOLDER / f"headrace-{board.name}.json": json.dumps(
            build(board, DASHBOARDS), cls=JSONEncoder, indent=2, sort_keys=True
        )
        + "\n"
        for board in DASHBOARDS
    }


def main() -> int:
    """Write or check the files. Exit code 0 means that all are current."""
    parser = argparse.ArgumentParser(description="Write the dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check = parser.parse_args().check
    stale = {path: text for path, text in texts().items() if not path.is_file() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if check:
            print(f"{path.name} is stale: run python -m deploy.grafana.dashboards and commit it", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {path.name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
