"""Fixtures of object storage: moto's server of S3, which answers `If-None-Match` with 412 as S3 does."""

import subprocess
import sys

import pytest

from tests.children import running
from tests.faulty_s3 import NONE, faulty_s3

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def s3_port():
    """Port of a server of S3 in a process of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running([sys.executable, "-c", SERVER], text=True, **pipes) as server:
        yield int(next(line for line in server.stdout if line.strip().isdigit()))
        server.stdin.close()


@pytest.fixture(scope="module")
def faulty(s3_port):
    """A proxy in front of the server, which lets everything pass until a test wants otherwise."""
    with faulty_s3(s3_port) as proxy:
        yield proxy


@pytest.fixture
def s3(faulty, monkeypatch):
    """A file system with an empty bucket `lake`; all libraries find the proxy in the environment."""
    from pyarrow import fs

    endpoint = faulty.url
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    found = fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True, allow_bucket_deletion=True)
    found.create_dir("lake")
    yield found
    faulty.set(NONE)
    found.delete_dir("lake")


@pytest.fixture
def lake(s3, faulty, tmp_path, monkeypatch):
    """A catalog of pyiceberg's configuration whose tables are in the bucket."""
    from pyiceberg.utils.config import Config

    prefix = "PYICEBERG_CATALOG__LAKE__"
    monkeypatch.setenv(f"{prefix}TYPE", "sql")
    monkeypatch.setenv(f"{prefix}URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv(f"{prefix}WAREHOUSE", "s3://lake/warehouse")
    monkeypatch.setenv(f"{prefix}S3__ENDPOINT", faulty.url)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return "lake"
