#!/opt/headrace/bin/python -I
"""The entry point of the image: the first argument selects what the container runs.

    broker, coordinator   the service with these options, by exec: it receives the signals itself
    drain                 hand over the leaderships of this container's broker (before it is stopped)
    health [NAME]         exit code 0 if startup, liveness or readiness (the default) succeeds
    secrets               make the API keys and passwords of docker-compose.yml that are missing in its volumes
    node-label            write a label of this Kubernetes node into a file: a broker's data center or rack
    anything else         the command line `headrace`

Three variables set values that are known only when the container runs:

    HEADRACE_FROM_FILES   NAME=path,NAME=path: variables and the files of their values; ${OTHER} in a file is expanded
    HEADRACE_NODE_NAME    the name of the node, for node-label
    HEADRACE_POD_IP       replaces {podIP} in a service's ADVERTISED_ADDRESS, in the form of DNS names: 10-0-0-1

Standard library only, so that a probe costs little. The services read everything else themselves.
"""

import argparse
import http.client
import json
import os
import secrets
import ssl
import string
import sys
import urllib.error
import urllib.request
from pathlib import Path

PREFIXES = ("HEADRACE_BROKER_", "HEADRACE_COORDINATOR_")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_SCHEME = "https"
HEALTH_NAMES = ("startup", "liveness", "readiness")
API_KEYS = ("headrace-admin/api-key", "headrace-monitor/api-key")
PASSWORDS = ("headrace-admin/etcd-root-password", "headrace-etcd-auth/password")
LETTERS = string.ascii_letters + string.digits


class ContainerError(Exception):
    """The container cannot start; the message has the cause and the next step."""


def environment_from_files(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that HEADRACE_FROM_FILES names, read from their files."""
    found = {}
    for entry in filter(None, environ.get("HEADRACE_FROM_FILES", "").split(",")):
        name, equals, path = entry.partition("=")
        if not equals or not name.startswith("HEADRACE_"):
            raise ContainerError(f"HEADRACE_FROM_FILES has {entry!r}: write HEADRACE_NAME=/path/of/file")
        try:
            text = Path(path).read_text("utf-8").strip()
            found[name] = string.Template(text).substitute(environ)
        except OSError as error:
            raise ContainerError(f"cannot read {name} from {path}: {error.strerror}; is it mounted?") from error
        except (KeyError, ValueError) as error:
            raise ContainerError(f"{path} for {name} names a variable that is not set: {error}") from error
    return found


def own_name(environ: dict[str, str]) -> dict[str, str]:
    """Return the advertised addresses that contain {podIP}, with the pod's address in its place."""
    found = {}
    for name in (prefix + "ADVERTISED_ADDRESS" for prefix in PREFIXES):
        if "{podIP}" in (told := environ.get(name, "")):
            if not (address := environ.get("HEADRACE_POD_IP", "")):
                raise ContainerError(f"{name} contains {{podIP}}: set HEADRACE_POD_IP to this pod's address")
            found[name] = told.replace("{podIP}", address.replace(".", "-").replace(":", "-"))
    return found


def health(arguments: list[str]) -> int:
    """Request a health check of this container's service over HTTP on its metrics port."""
    parser = argparse.ArgumentParser(prog="health", description="Exit code 0: the check succeeded.")
    parser.add_argument("name", nargs="?", choices=HEALTH_NAMES, default="readiness")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    parsed = parser.parse_args(arguments)
    listen = next((value for prefix in PREFIXES if (value := os.environ.get(prefix + "METRICS_LISTEN"))), "")
    host, _, port = listen.rpartition(":")
    if not port:
        raise ContainerError("health needs HEADRACE_BROKER_METRICS_LISTEN or HEADRACE_COORDINATOR_METRICS_LISTEN")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    connection = http.client.HTTPConnection(host, int(port), timeout=parsed.timeout)
    if any(os.environ.get(prefix + "METRICS_TLS", "").lower() in ("true", "1") for prefix in PREFIXES):
        context = ssl._create_unverified_context()  # Of this container's own port.
        connection = http.client.HTTPSConnection(host, int(port), timeout=parsed.timeout, context=context)
    try:
        connection.request("GET", f"/health/{parsed.name}")
        answer = connection.getresponse()
        print(answer.read(4096).decode("utf-8", "replace").strip())
    except OSError as error:
        print(f"{parsed.name}: no answer from {listen}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    return 0 if answer.status == 200 else 1


def make_secrets(arguments: list[str]) -> int:
    """Write each key and password that is missing, readable for this user and group."""
    parser = argparse.ArgumentParser(prog="secrets")
    parser.add_argument("--directory", type=Path, default=Path("/etc"), help="where the volumes are mounted")
    directory = parser.parse_args(arguments).directory
    for name in (*API_KEYS, *PASSWORDS):
        path, secret = directory / name, _random_text(43)
        if not path.exists():
            part = path.with_name(f".{path.name}.part")
            part.unlink(missing_ok=True)
            text = f"hrk_{_random_text(12)}_{secret}" if name in API_KEYS else secret
            with open(part, "x", opener=lambda file, flags: os.open(file, flags, 0o440)) as file:
                file.write(text)
            part.rename(path)
            print(f"made {path}")
    return 0


def _random_text(characters: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(characters))


def node_label(arguments: list[str]) -> int:
    """Write a label of this pod's node; empty if the node has no such label."""
    parser = argparse.ArgumentParser(prog="node-label")
    parser.add_argument("--label", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--account", type=Path, default=SERVICE_ACCOUNT, help="directory of the pod's token")
    parsed = parser.parse_args(arguments)
    try:
        node, host = os.environ["HEADRACE_NODE_NAME"], os.environ["KUBERNETES_SERVICE_HOST"]
    except KeyError as error:
        raise ContainerError(f"node-label needs {error} in its environment") from error
    host = f"[{host}]" if ":" in host else host
    url = f"{API_SCHEME}://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}/api/v1/nodes/{node}"
    try:
        token = (parsed.account / "token").read_text("ascii").strip()
        context = ssl.create_default_context(cafile=str(parsed.account / "ca.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # CA certificates of many clusters lack extensions.
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            labels = json.load(answer)["metadata"].get("labels", {})
    except urllib.error.HTTPError as error:
        raise ContainerError(f"node {node} cannot be read ({error.code}): the pod needs `get` on nodes") from error
    except OSError as error:
        raise ContainerError(f"node {node} cannot be read at {url}: {error}") from error
    value = labels.get(parsed.label, "")
    if not value:
        print(f"warning: node {node} has no label {parsed.label}: no {parsed.output.name} is set", file=sys.stderr)
    parsed.output.write_text(value + "\n", "utf-8")
    return 0


def main() -> None:
    """Run what the first argument selects."""
    word, *rest = sys.argv[1:] or ["--help"]
    match word:
        case "health":
            sys.exit(health(rest))
        case "node-label":
            sys.exit(node_label(rest))
        case "secrets":
            sys.exit(make_secrets(rest))
        case _:
            command = command_for(word, rest)
            environ = {**os.environ, **environment_from_files(dict(os.environ))}
            os.execvpe(command[0], command, {**environ, **own_name(environ)})


def command_for(word: str, rest: list[str]) -> list[str]:
    """Return the command that replaces this process."""
    match word:
        case "broker" if not rest or rest[0].startswith("-"):  # Otherwise a CLI command: `broker list`.
            return ["headrace-broker", "run", *rest]
        case "coordinator":
            return ["headrace-coordinator", *rest]
        case "drain":
            return ["headrace-broker", "drain", *rest]
        case _:
            return ["headrace", word, *rest]


if __name__ == "__main__":
    try:
        main()
    except ContainerError as error:
        sys.exit(f"error: {error}")
