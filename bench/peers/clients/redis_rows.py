"""Rows in Redis, a hash each, by redis-py: the cases of `bench.tables`, single and pipelined.

Arguments: port and process id of the server, rows, seconds of each case, reads a second of the paced case.
"""

from __future__ import annotations

import sys

import redis

from bench.rows import MANY, OTHER_VALUE, VALUE, Draw, key, measure

FIELD = b"value"
LOADED = 10_000


def main(port: int, pid: int, rows: int, seconds: float, rate: float) -> None:
    """Load the rows, and measure."""
    client, draw = redis.Redis(port=port), Draw(rows)
    for start in range(0, rows, LOADED):
        put_many(client, [key(number) for number in range(start, min(start + LOADED, rows))], VALUE)
    measure(f"redis: get at {rate:g}/s", lambda: client.hgetall(draw.one()), seconds, pid=pid, rate=rate)
    measure("redis: get", lambda: client.hgetall(draw.one()), seconds, pid=pid)
    measure("redis: get of an absent row", lambda: client.hgetall(b"none"), seconds, pid=pid)
    measure(f"redis: get of {MANY}", lambda: get_many(client, draw.many()), seconds, pid=pid, items=MANY)
    measure("redis: put", lambda: client.hset(draw.one(), FIELD, OTHER_VALUE), seconds, pid=pid)
    measure(f"redis: put of {MANY}", lambda: put_many(client, draw.many(), OTHER_VALUE), seconds, pid=pid, items=MANY)


def get_many(client: redis.Redis, keys: list[bytes]) -> list[object]:
    """Read rows in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for each in keys:
        pipeline.hgetall(each)
    rows: list[object] = pipeline.execute()
    return rows


def put_many(client: redis.Redis, keys: list[bytes], value: bytes) -> None:
    """Write rows in one pipeline."""
    pipeline = client.pipeline(transaction=False)
    for each in keys:
        pipeline.hset(each, FIELD, value)
    pipeline.execute()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
