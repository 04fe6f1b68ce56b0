"""`python -m bench.registry`: how fast a coordinator's schema registry answers a schema by its id.

Each connection asks for one id after the other, as clients do that have not seen it yet. Prints a line of JSON for each
number of connections, with the time for which the coordinator waited for a processor: the tail is made of it.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Annotated
from urllib.parse import urlsplit

import numpy as np
import typer
from headrace import schemas
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.processor import waiting_seconds

SCHEMAS = 100


def latencies(address: str, ids: list[int], requests: int) -> list[float]:
    """Return the seconds of each request of one connection."""
    connection, found = HTTPConnection(address), []
    try:
        for turn in range(requests):
            started = time.perf_counter()
            connection.request("GET", f"/schemas/ids/{ids[turn % len(ids)]}")
            answer = connection.getresponse()
            body = answer.read()
            found.append(time.perf_counter() - started)
            assert answer.status == 200, body
    finally:
        connection.close()
    return found


def main(
    requests: Annotated[int, typer.Option(help="Requests of each connection.", min=100)] = 5_000,
) -> None:
    """Measure requests for ids that the registry has in memory."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        url, pid = cluster.schema_registry_urls[0], cluster.coordinators[0].pid
        assert pid is not None
        registry, ids = schemas.SchemaRegistry(url), []
        for number in range(SCHEMAS):
            fields = [{"name": f"f{place}", "type": "string"} for place in range(20)]
            text = json.dumps({"type": "record", "name": f"R{number}", "fields": fields})
            ids.append(registry.register(f"s{number}", text, "AVRO"))
        for connections in (1, 8):
            with ThreadPoolExecutor(connections) as pool:
                waited, started = waiting_seconds(pid), time.perf_counter()
                runs = pool.map(lambda _: latencies(urlsplit(url).netloc, ids, requests), range(connections))
                found = np.array([each for run in runs for each in run])
            took, waited = time.perf_counter() - started, waiting_seconds(pid) - waited
            p50, p99 = (round(float(np.quantile(found, share)) * 1_000, 3) for share in (0.5, 0.99))
            figures = {"connections": connections, "requests/s": round(len(found) / took), "p50 ms": p50, "p99 ms": p99}
            print(json.dumps({**figures, "waited for a processor s": round(waited, 3)}))


if __name__ == "__main__":
    typer.run(main)
