"""Generator of docs/reference/audit.md, from the fields of an event and the table of methods."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from headrace_coordinator.rpc.schema_requests import SchemaRequests
from headrace_server.audit.events import AuditEvent
from headrace_server.methods import METHODS

TEXT = """# Records of the audit log

The topic `__audit` has one record per event. Its value is a JSON object in UTF-8 with the fields below. The controller
creates the topic once the [posture](../guides/identity.md) is `observe` or `required`, with `retention_ms` of 90 days.
Only brokers and coordinators write it; administrators read it, and users with a grant on `topic:__audit`.

{fields}

An event whose write was not acknowledged is written again, so it may be there twice with the same `server`, `time_ms`,
`method` and `request_id`. Refusals of one user and method within a second are one record, and so are the data calls of
one user and method on one topic. Of a user that reads or writes more than 100 such topics at a server, data calls on
the others are one record a second for each method, without `resources`. Beyond 1,000
users, methods and topics at a server, one record of each `kind` has the number of all others, and no names.

`headrace topic alter payroll --config audit=read` records who reads a topic; `write` and `all` are the other values. A
consumer that waits for records calls several times a minute.

Acts are the methods {acts}. The logger `audit` also logs them at level `info`.
So are {registry} of the schema registry. `BootstrapAdmin` and `ReplaceSecret` are the commands
`headrace-coordinator bootstrap-admin` and `replace-secret`, which make no call: the controller writes these events when
it sees the new administrator, whose name is in `request`, or a step of the replacement.

## Who deleted this?

```sh
headrace sql "select timestamp, json->>'user' as who, json->>'error' as error from __audit
  where json->>'kind' = 'act' and json->>'method' = 'DeleteTopics' and json->>'resources' like '%\\"topic:orders\\"%'"
```

The same on Spark:

```python
schema = "kind string, time_ms long, user string, address string, method string, error string, resources array<string>"
events = (
    spark.read.format("headrace")
    .option("headrace.bootstrap.servers", "coordinator-1.example.org:7170")
    .option("headrace.security.protocol", "SSL")
    .option("headrace.ssl.cafile", "services-ca.pem")
    .option("headrace.api.key.file", "admin.key")
    .option("subscribe", "__audit")
    .load()
    .selectExpr(f"from_json(cast(value as string), '{{schema}}') as event")
    .select("event.*")
)
deletions = events.where("kind = 'act' and method = 'DeleteTopics' and array_contains(resources, 'topic:orders')")
deletions.show()
```
"""


def audit_body() -> str:
    """Return the page."""
    rows = ["| field | value |", "| --- | --- |"]
    rows += [f"| `{name}` | {text} |" for name, text in _fields()]
    acts = sorted({path.rpartition("/")[2] for path, row in METHODS.items() if row.is_act})
    listed = ", ".join(f"`{name}`" for name in acts)
    wrapped = textwrap.fill(f"Acts are the methods {listed}.", 125, break_on_hyphens=False)
    routes = SchemaRequests(None, None, None).routes()  # type: ignore[arg-type]
    registry = ", ".join(f"`{name}`" for name in sorted({route.name for route in routes if route.row.is_act}))
    page = TEXT.format(fields="\n".join(rows), acts=listed, registry=registry)
    return page.replace(f"Acts are the methods {listed}.", wrapped)


def _fields() -> list[tuple[str, str]]:
    """Return the fields of an event with their docstrings."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(AuditEvent)).body if isinstance(node, ast.ClassDef))
    found = []
    for field, docstring in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(docstring, ast.Expr), field.target.id
            assert isinstance(docstring.value, ast.Constant), field.target.id
            found.append((field.target.id, " ".join(str(docstring.value.value).split())))
    return found
