"""Log lines as JSON objects, with the names that the servers' lines have: event, level, timestamp."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats a record of `logging` as one line; `exception` has the traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
