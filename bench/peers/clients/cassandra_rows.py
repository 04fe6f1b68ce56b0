"""Rows in Cassandra, a partition of one column each, by its Python driver: the cases of `bench.tables`.

Arguments: port and process id of the server, rows, seconds of each case, reads a second of the paced case.
"""

from __future__ import annotations

import sys

from cassandra.cluster import Cluster, Session
from cassandra.concurrent import execute_concurrent_with_args

from bench.rows import MANY, OTHER_VALUE, VALUE, Draw, key, measure

LOADED = 10_000
CONCURRENCY = 100
"""Statements in flight of a call that reads or writes many rows, as the driver has it by default."""
SCHEMA = (
    "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TABLE bench.rows (key blob PRIMARY KEY, value blob)",
)


def main(port: int, pid: int, rows: int, seconds: float, rate: float) -> None:
    """Load the rows, and measure."""
    with Cluster(["127.0.0.1"], port=port, protocol_version=5) as cluster:
        session, draw = cluster.connect(), Draw(rows)
        for statement in SCHEMA:
            session.execute(statement, timeout=60)
        get = session.prepare("SELECT value FROM bench.rows WHERE key = ?")
        put = session.prepare("INSERT INTO bench.rows (key, value) VALUES (?, ?)")
        for start in range(0, rows, LOADED):
            run_many(session, put, [(key(number), VALUE) for number in range(start, min(start + LOADED, rows))])

        def read(row: bytes) -> object:
            return session.execute(get, (row,)).one()

        def measured(case: str, call: object, **more: object) -> None:
            measure(f"cassandra: {case}", call, seconds, pid=pid, **more)  # type: ignore[arg-type]

        measured(f"get at {rate:g}/s", lambda: read(draw.one()), rate=rate)
        measured("get", lambda: read(draw.one()))
        measured("get of an absent row", lambda: read(b"none"))
        measured(f"get of {MANY}", lambda: run_many(session, get, [(each,) for each in draw.many()]), items=MANY)
        measured("put", lambda: session.execute(put, (draw.one(), OTHER_VALUE)))
        rewritten = f"put of {MANY}"
        measured(rewritten, lambda: run_many(session, put, [(each, OTHER_VALUE) for each in draw.many()]), items=MANY)


def run_many(session: Session, statement: object, arguments: list[tuple[bytes, ...]]) -> None:
    """Execute a prepared statement for each of many rows, `CONCURRENCY` at a time."""
    execute_concurrent_with_args(session, statement, arguments, concurrency=CONCURRENCY)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
