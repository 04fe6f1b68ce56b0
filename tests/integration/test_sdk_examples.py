"""Every program of examples/sdk runs against a real cluster and prints what it promises."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "sdk"

PRINTS = {
    "admin": ["retention_ms 3600000", "deleted up to 1", "latest 1"],
    "asyncio_pipeline": ["the sum is 499500"],
    "bulk_arrow": ["100000 rows; b'value 99999'"],
    "consume": ["read up to 100 and again [b'90', b'91'", "b'99']"],
    "consumer_group": ["the first consumer dealt with 50", "the second consumer dealt with 50"],
    "json_records": ["refused:", "1 ann 3", "0 bert 4", "0 cleo 4"],
    "produce": ["offset 0", "offset 1"],
    "run_handlers": ["handled 99, their sum is 4940, dead letters: 1", "b'ten' ValueError"],
    "reader_pandas": ["b'user-0'    100", "b'user-2'    100"],
}


def test_every_example_is_here():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_runs(headrace_cluster, topic_name, capsys, name):
    program = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    program["main"](headrace_cluster.bootstrap_servers, topic_name)
    printed = capsys.readouterr().out
    for text in PRINTS[name]:
        assert text in printed
