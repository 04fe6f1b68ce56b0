"""Topic settings: one table, strict when set, forgiving when read back, and told apart from their defaults."""

import pytest
from headrace.partition.topic_configs import (
    CONFIG_TABLE,
    INT64_MAX,
    Durability,
    TopicConfig,
    alter_topic_configs,
    describe_topic_config,
    describe_topic_configs,
    effective_min_insync_replicas,
    normalise_topic_configs,
    parse_topic_config,
    read_stored_topic_config,
)
from headrace.v1 import cluster_pb2
from headrace.wire.errors import InvalidConfigError


def test_defaults_and_types():
    """Nothing set is all defaults; what is set has its type."""
    assert parse_topic_config({}) == TopicConfig()
    config = parse_topic_config({"retention_ms": "-1", "durability": "async", "flush_ms": "500"})
    assert (config.retention_ms, config.durability, config.flush_ms) == (-1, Durability.ASYNC, 500)
    assert config.flushes_by_policy
    assert not parse_topic_config({"durability": "async"}).flushes_by_policy


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention": "5"}, ["retention", "did you mean retention_ms?"]),
        ({"zzzz": "5"}, ["unknown topic setting 'zzzz'"]),
        ({"retention_ms": "soon"}, ["retention_ms = 'soon'", "not a whole number"]),
        ({"retention_ms": "-2"}, ["retention_ms = '-2'", "outside -1 .."]),
        ({"retention_ms": "0"}, ["retention_ms = 0 would keep no record"]),
        ({"retention_bytes": "0"}, ["retention_bytes = 0 would keep no record"]),
        ({"durability": "maybe"}, ["durability = 'maybe'", "fsync, async"]),
        ({"min_insync_replicas": "-1"}, ["min_insync_replicas"]),
        ({"flush_ms": "100"}, ["flush_ms", "durability=fsync"]),
        ({"flush_messages": "100", "durability": "fsync"}, ["flush_messages"]),
        ({"segment_bytes": "65536"}, ["segment_bytes = 65536 is less than max_batch_bytes"]),
        ({"segment_ms": str(INT64_MAX + 1)}, ["segment_ms", "2^63 - 1"]),
        ({"validate": "all"}, ["validate = 'all'", "columns, header"]),
        ({"allowed_codecs": "none,snappy"}, ["allowed_codecs = 'none,snappy'", "some of none, lz4, zstd, gzip"]),
        ({"allowed_codecs": "zstd"}, ["has no none", "Set allowed_codecs=none,zstd"]),
        ({"cleanup_policy": "squash"}, ["cleanup_policy = 'squash'", "some of compact, delete"]),
        ({"cleanup_policy": ""}, ["cleanup_policy", "some of compact, delete"]),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": "2000", "max_compaction_lag_ms": "1000"},
            ["min_compaction_lag_ms = 2000 exceeds max_compaction_lag_ms = 1000"],
        ),
    ],
)
def test_bad_values_are_named(configs, words):
    """Unknown names (with the nearest known one), bad values and relations: each refused with what would be right."""
    with pytest.raises(InvalidConfigError) as caught:
        parse_topic_config(configs)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.action


def test_only_what_differs_is_stored():
    """Defaults and odd spellings do not reach etcd."""
    stored = normalise_topic_configs({"retention_ms": "604800000", "segment_ms": " 5_000 ", "durability": "async"})
    assert stored == {"durability": "async", "segment_ms": "5000"}
    assert normalise_topic_configs({"allowed_codecs": "gzip, none,gzip"}) == {"allowed_codecs": "none,gzip"}
    assert normalise_topic_configs({"allowed_codecs": "gzip,zstd,none,lz4"}) == {}


def test_a_table_has_batches_that_can_be_decoded():
    """A broker takes a topic with both that an earlier release has stored."""
    table = {"cleanup_policy": "compact", "table": "yes", "retention_ms": "-1"}
    with pytest.raises(InvalidConfigError, match="table = yes with validate = header"):
        alter_topic_configs(table, {"validate": "header"}, [])
    with pytest.raises(InvalidConfigError, match="table = yes with validate = header"):
        alter_topic_configs({"cleanup_policy": "compact", "validate": "header"}, {"table": "yes"}, [])
    assert alter_topic_configs(table | {"validate": "header"}, {}, ["validate"]) == table
    config, skipped = read_stored_topic_config(table | {"validate": "header"})
    assert (config.is_table, config.compacts, skipped) == (True, True, ())


def test_a_compacted_topic_has_no_retention():
    """Neither a broker of an earlier release nor one that cannot read the policy removes its records."""
    assert normalise_topic_configs({"cleanup_policy": "compact"}) == {"cleanup_policy": "compact", "retention_ms": "-1"}
    assert parse_topic_config({"cleanup_policy": "compact"}).compacts
    assert normalise_topic_configs({"cleanup_policy": "delete, compact"}) == {"cleanup_policy": "compact,delete"}
    with pytest.raises(InvalidConfigError, match="retention_ms has no meaning with cleanup_policy=compact"):
        normalise_topic_configs({"cleanup_policy": "compact", "retention_ms": "5000"})
    assert alter_topic_configs({"retention_ms": "-1"}, {"cleanup_policy": "compact"}, []) == {
        "cleanup_policy": "compact",
        "retention_ms": "-1",
    }
    config, skipped = read_stored_topic_config({"cleanup_policy": "archive", "retention_ms": "5000"})
    assert (config.retention_ms, config.retention_bytes, skipped) == (-1, -1, ("cleanup_policy",))


def test_alter_sets_and_unsets():
    """What is set is changed, what is unset has its default again, the rest stays; relations hold for the whole."""
    current = {"durability": "async", "flush_ms": "100", "retention_ms": "5000"}
    assert alter_topic_configs(current, {"retention_ms": "6000"}, ["flush_ms"]) == {
        "durability": "async",
        "retention_ms": "6000",
    }
    with pytest.raises(InvalidConfigError, match="flush_ms"):
        alter_topic_configs(current, {}, ["durability"])
    with pytest.raises(InvalidConfigError, match="both set and unset"):
        alter_topic_configs(current, {"flush_ms": "1"}, ["flush_ms"])
    with pytest.raises(InvalidConfigError, match="did you mean flush_ms"):
        alter_topic_configs(current, {}, ["flush_m"])


def test_a_broker_reads_what_a_newer_release_wrote():
    """A stored setting that this release cannot use is left out and named; it does not stop the topic."""
    config, skipped = read_stored_topic_config({"retention_ms": "5000", "tiering": "on", "segment_ms": "soon"})
    assert config == TopicConfig(retention_ms=5_000)
    assert skipped == ("segment_ms", "tiering")
    config, skipped = read_stored_topic_config({"flush_ms": "100", "retention_ms": "5000"})
    assert config == TopicConfig(retention_ms=-1)
    assert skipped == ("flush_ms", "retention_ms")


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes"])
def test_retention_that_cannot_be_read_removes_nothing(name):
    """A default would remove what a topic that keeps its records for ever, in a later release's words, has."""
    config, skipped = read_stored_topic_config({name: "for ever"})
    assert getattr(config, name) == -1
    assert skipped == (name,)


def test_describe_tells_defaults_apart():
    """Every setting is shown, with its value, its default and which of the two it is."""
    described = {value.name: value for value in describe_topic_config({"retention_ms": "5000"}, 1)}
    assert list(described) == [row.name for row in CONFIG_TABLE]
    retention, segment = described["retention_ms"], described["segment_bytes"]
    assert (retention.value, retention.source) == ("5000", cluster_pb2.CONFIG_SOURCE_TOPIC)
    assert (segment.value, segment.source) == ("1073741824", cluster_pb2.CONFIG_SOURCE_DEFAULT)
    page = describe_topic_configs()
    assert all(f"| `{row.name}` |" in page for row in CONFIG_TABLE)
    assert all(row.documentation.endswith((".", "system.")) for row in CONFIG_TABLE)


@pytest.mark.parametrize(
    ("setting", "replicas", "expected"), [(0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 9, 2), (1, 3, 1), (3, 3, 3), (3, 2, 2)]
)
def test_the_least_number_in_sync_follows_the_number_of_replicas(setting, replicas, expected):
    """Two of at least three survive the loss of one; a setting counts as it is, up to the replicas there are."""
    assert effective_min_insync_replicas(setting, replicas) == expected
    described = {value.name: value for value in describe_topic_config({}, replicas)}["min_insync_replicas"]
    assert described.value == described.default_value == str(effective_min_insync_replicas(0, replicas))


def test_one_in_sync_is_stored_where_it_is_requested():
    """It is not the default of a topic with three replicas."""
    assert normalise_topic_configs({"min_insync_replicas": "1"}) == {"min_insync_replicas": "1"}
    assert normalise_topic_configs({"min_insync_replicas": "0"}) == {}


TABLE_CONFIG = {"cleanup_policy": "compact", "table": "yes"}


@pytest.mark.parametrize(
    ("text", "value", "stored"), [("0.01", 0.01, "0.01"), ("1", 1, "1"), ("1.0", 1, "1"), ("1e-4", 0.0001, "0.0001")]
)
def test_a_share_of_the_keys_is_sampled(text, value, stored):
    assert parse_topic_config(TABLE_CONFIG | {"trace_sample": text}).trace_sample == value
    assert normalise_topic_configs(TABLE_CONFIG | {"trace_sample": text})["trace_sample"] == stored


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "few", "inf"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(InvalidConfigError, match=r"0 \.\. 1"):
        parse_topic_config(TABLE_CONFIG | {"trace_sample": text})


def test_only_a_table_is_traced():
    assert "trace_sample" not in normalise_topic_configs(TABLE_CONFIG | {"trace_sample": "0.0"})
    with pytest.raises(InvalidConfigError, match="no table"):
        parse_topic_config({"trace_sample": "0.5"})
