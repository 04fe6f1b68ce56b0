"""What the demo sends: exactly a file's lines, or page views with the skew and the order that they claim."""

import json
from collections import Counter
from pathlib import Path

import pytest

from examples.demo.machine import MachineSampler
from examples.demo.sources import CHUNK_RECORDS, DemoLoad, load_of_lines, load_of_views, log_lines, page_views


def test_a_file_gives_exactly_its_lines(tmp_path: Path) -> None:
    """Every line once, bytes untouched (also those that are no UTF-8, empty ones and a last one without an end)."""
    lines = [b"10.0.0.1 GET /a", b"", b"10.0.0.2 \xff\xfe", b"10.0.0.1 GET /b", b"no end"]
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join(lines))
    sent = [(partition, value) for chunk in log_lines(path, 4) for partition, values in chunk for value in values]
    assert Counter(value for _, value in sent) == Counter(lines)
    of_one = [(partition, value) for partition, value in sent if value.startswith(b"10.0.0.1")]
    assert len({partition for partition, _ in of_one}) == 1
    assert [value for _, value in of_one] == [lines[0], lines[3]]


def test_page_views_are_as_many_as_requested_and_reproducible() -> None:
    """The count is exact over several chunks, and a seed gives the same views twice."""
    records = CHUNK_RECORDS * 2 + 17
    first, second = (list(page_views(records, 6, seed=7)) for _ in range(2))
    assert first == second
    assert sum(len(values) for chunk in first for _, values in chunk) == records
    assert first != list(page_views(records, 6, seed=8))


def test_page_views_are_skewed_and_ordered_by_user() -> None:
    """A few users make most views, each user's views are in one partition, in the order of their time."""
    users: Counter[str] = Counter()
    homes: dict[str, int] = {}
    last: dict[int, int] = {}
    for chunk in page_views(20_000, 3, seed=1):
        for partition, values in chunk:
            for view in map(json.loads, values):
                users[view["user"]] += 1
                assert homes.setdefault(view["user"], partition) == partition
                assert view["at_ms"] >= last.get(partition, 0)
                last[partition] = view["at_ms"]
    busiest = sum(count for _, count in users.most_common(len(users) // 100))
    assert busiest > 20_000 * 0.1
    assert len(users) > 5_000


def passed_when_interrupted(load: DemoLoad) -> tuple[int, int]:
    """How many values come before the interruption, and how many in all; it must be one."""
    interruptions: list[int] = []
    counts: list[int] = []
    for chunk in load.interrupted(lambda: interruptions.append(sum(counts))):
        counts.append(sum(len(values) for _, values in chunk))
    (before,) = interruptions
    return before, sum(counts)


@pytest.mark.parametrize("records", [CHUNK_RECORDS * 20, 1_000])
def test_a_load_is_interrupted_once_in_its_middle(records: int) -> None:
    """Half of the page views come before and half after, a chunk more or less, however few there are."""
    before, in_all = passed_when_interrupted(load_of_views(records, 6, seed=1))
    assert in_all == records
    assert records * 0.5 <= before <= records * 0.63


def test_a_file_is_interrupted_in_its_middle(tmp_path: Path) -> None:
    """A file's middle is half of its bytes; one of a single line is interrupted at its end."""
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(b"10.0.0.%d - GET /page/%d\n" % (n % 50, n) for n in range(3_000)))
    before, in_all = passed_when_interrupted(load_of_lines(path, 4))
    assert in_all == 3_000
    assert 1_400 <= before <= 2_000
    path.write_bytes(b"all there is")
    assert passed_when_interrupted(load_of_lines(path, 4)) == (1, 1)


def test_the_machine_is_sampled_as_rates() -> None:
    """Every kind of metric that /proc has comes as JSON with shares or rates; what is absent is named."""
    sampler = MachineSampler()
    metrics = [(key.decode(), json.loads(value)) for key, value in sampler.sample()]
    assert {"cpu", "memory"} <= {key for key, _ in metrics}
    for key, metric in metrics:
        assert metric["metric"].partition(":")[0] == key
    total = next(metric for key, metric in metrics if metric["metric"] == "cpu:cpu")
    assert all(0 <= value <= 1 for name, value in total.items() if name.endswith("_ratio"))


def test_a_machine_without_proc_has_no_metrics_and_an_error(tmp_path: Path) -> None:
    """Sources that cannot be read are named, not invented."""
    sampler = MachineSampler(tmp_path)
    assert sampler.sample() == []
    assert {"stat", "meminfo", "diskstats", "net/dev"} <= sampler.absent
