"""The causes of failing probes as a real process reports them: (reason, next step) by the name of the probe."""

import json
import urllib.error
import urllib.request

import grpc
from headrace.v1 import process_pb2, process_pb2_grpc
from headrace_server.health import HEALTH_NAMES, HealthCause

SECONDS = 30

Causes = dict[str, list[tuple[str, str]]]


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body of one GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def over_http(address: str) -> Causes:
    """Causes at a metrics address, with the status that belongs to them."""
    found = {}
    for name in HEALTH_NAMES:
        status, body = get(address, f"/health/{name}")
        found[name] = [(each["reason"], each["action"]) for each in json.loads(body)["causes"]]
        assert status == (503 if found[name] else 200)
    return found


def over_grpc(channel: grpc.Channel) -> Causes:
    """Causes that `DescribeProcess` returns."""
    request = process_pb2.DescribeProcessRequest()
    answer = process_pb2_grpc.ProcessServiceStub(channel).DescribeProcess(request, timeout=SECONDS)
    return {probe.name: [(each.reason, each.action) for each in probe.causes] for probe in answer.health}


def expected(*held: HealthCause) -> Causes:
    """Causes of a process with these, and no others."""
    return {name: [(each.reason, each.action) for each in held if name in each.probes] for name in HEALTH_NAMES}
