"""The options of the data source: what they mean, and that each thing that is wrong is said in a sentence naming it."""

import re
from pathlib import Path

import pytest
from headrace.client.base.errors import ConfigError
from headrace.spark.option_table import BATCH, OPTIONS, STREAM, WRITE
from headrace.spark.options import describe_schema_options, read_options, write_options
from headrace.wire.ids import TopicPartition

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "spark.md"
SERVERS = {"headrace.bootstrap.servers": "localhost:7170"}


def read(use=BATCH, **given):
    return read_options({**SERVERS, "subscribe": "clicks", **given}, use)


def test_defaults_are_those_of_the_kafka_source():
    """A batch reads everything, a stream what comes; lost records end the query; headers are left out."""
    batch, stream = read(), read(STREAM)
    assert (batch.start.word, batch.end.word, stream.start.word) == ("earliest", "latest", "latest")
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.settings == {"bootstrap_servers": "localhost:7170"}


def test_settings_of_the_client_are_checked_and_converted():
    """Dots or underscores, numbers as numbers; Spark's lower case does no harm."""
    given = {"headrace.prefetch.bytes": "1048576", "headrace.client_rack": "a", "headrace.fetch.max.wait.ms": "7"}
    assert read(**given).settings == {
        "bootstrap_servers": "localhost:7170",
        "prefetch_bytes": 1 << 20,
        "client_rack": "a",
        "fetch_max_wait_ms": 7,
    }
    written = write_options({**SERVERS, "topic": "t", "headrace.acks": "1", "headrace.compression.type": "zstd"})
    assert written.settings["acks"] == 1
    assert written.settings["compression_type"] == "zstd"


def test_what_is_read_is_said_in_one_of_three_ways():
    """Names, a pattern, or partitions."""
    assert read(subscribe=" b , a,b").subscription.names == ("a", "b")
    assert read_options({**SERVERS, "subscribepattern": "cl.*"}, BATCH).subscription.pattern == "cl.*"
    assigned = read_options({**SERVERS, "assign": '{"t": [2, 0, 2]}'}, BATCH).subscription
    assert (assigned.assigned, assigned.option) == ({"t": (0, 2)}, "assign")


def test_offsets_and_times_are_read_a_partition():
    """As JSON."""
    start = read(startingOffsets='{"clicks": {"0": 23, "1": -2}}').start
    assert start.offsets == {TopicPartition("clicks", 0): 23, TopicPartition("clicks", 1): -2}
    times = read(endingOffsetsByTimestamp='{"clicks": {"0": 5}}').end
    assert times.times_ms == {TopicPartition("clicks", 0): 5}
    assert read(startingTimestamp="1700000000000").start.time_ms == 1_700_000_000_000


WRONG_READ = [
    ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign are given"),
    ({"subscribe": ""}, "subscribe, subscribePattern or assign is missing"),
    ({"subscribe": "a b"}, "option subscribe: .*contains ' '"),
    ({"subscribe": "", "subscribepattern": "(a"}, r"subscribePattern='\(a' is not a regular expression"),
    ({"subscribe": "", "assign": "[1]"}, "assign='.1.' is not a JSON object"),
    ({"subscribe": "", "assign": '{"a": []}'}, "assign: the partitions of a are not a list"),
    ({"subscribe": "", "assign": '{"a": [true]}'}, "assign: the partitions of a are not a list"),
    ({"startingoffsets": "erliest"}, "startingOffsets='erliest' is not JSON nor earliest or latest"),
    ({"startingoffsets": '{"a": 5}'}, "startingOffsets: a has no object of partitions"),
    ({"startingoffsets": '{"a": {"x": 5}}'}, "startingOffsets: 'x' of a is not a partition"),
    ({"startingoffsets": '{"a": {"0": "5"}}'}, "startingOffsets: '5' for a-0 is not an offset"),
    ({"startingoffsets": '{"a": {"0": -3}}'}, "startingOffsets: -3 for a-0 is no offset"),
    ({"startingoffsets": "latest"}, "startingOffsets=latest reads nothing in a batch"),
    ({"endingoffsets": "earliest"}, "endingOffsets=earliest reads nothing"),
    ({"startingtimestamp": "yesterday"}, "startingTimestamp='yesterday' is not a time"),
    ({"startingtimestamp": "999999999999999999"}, "startingTimestamp: 9+ is not a time"),
    ({"startingtimestamp": "5", "startingoffsets": "earliest"}, "startingTimestamp and startingOffsets are given"),
    ({"minpartitions": "0"}, "minPartitions='0' is not a number of at least 1"),
    ({"maxrecordsperpartition": "many"}, "maxRecordsPerPartition='many' is not a number"),
    ({"failondataloss": "perhaps"}, "failOnDataLoss='perhaps' is not true or false"),
    ({"maxoffsetspertrigger": "5"}, "option maxOffsetsPerTrigger is for reading a stream, not for reading a batch"),
    ({"commitgroup": "g"}, "option commitGroup is for reading a stream"),
    ({"newestperkey": "true", "minpartitions": "4"}, "options newestPerKey and minPartitions exclude each other"),
    ({"newestperkey": "true", "startingoffsets": "earliest"}, "newestPerKey and startingOffsets exclude each other"),
    ({"topic": "t"}, "option topic is for writing"),
    ({"startingofsets": "earliest"}, "unknown option 'startingofsets'; did you mean 'startingOffsets'?"),
    ({"kafka.bootstrap.servers": "h:1"}, "unknown option 'kafka.bootstrap.servers'; settings of the client are named"),
    ({"path": "clicks"}, "unknown option 'path'; name the topic by the option subscribe"),
    ({"headrace.prefetch.bites": "1"}, "unknown option 'headrace.prefetch.bites'; did you mean"),
    ({"headrace.prefetch.bytes": "much"}, "option headrace.prefetch.bytes='much' is not a number"),
    ({"headrace.prefetch.bytes": "0"}, "option headrace.prefetch.bytes: prefetch_bytes=0 is not within"),
    ({"headrace.bootstrap.servers": "nowhere"}, "option headrace.bootstrap.servers: .* is not host:port"),
    ({"headrace.key.deserializer": "str"}, "unknown option 'headrace.key.deserializer'"),
]


@pytest.mark.parametrize(("given", "says"), WRONG_READ, ids=[says for _, says in WRONG_READ])
def test_a_wrong_option_of_a_reader_is_named(given, says):
    """In one sentence, before anything is asked of the cluster."""
    with pytest.raises(ConfigError, match=says) as caught:
        read_options({**SERVERS, "subscribe": "clicks", **given}, BATCH)
    assert "\n" not in str(caught.value)


def test_the_addresses_are_not_guessed():
    """An executor's localhost is another machine."""
    with pytest.raises(ConfigError, match=r"option headrace\.bootstrap\.servers is missing"):
        read_options({"subscribe": "clicks"}, BATCH)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for reading a batch, not for reading a stream"),
        ({"commitGroup": "a b"}, "option commitGroup: "),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(given, says):
    """As those of a batch."""
    with pytest.raises(ConfigError, match=says):
        read(STREAM, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "t"}, "option subscribe is for reading a batch or reading a stream, not for writing"),
        ({"topic": "a/b"}, "option topic: .*contains '/'"),
        ({"headrace.acks": "0"}, "headrace.acks=0 .* would let Spark's retries write records twice"),
        ({"headrace.acks": "2"}, "option headrace.acks: "),
        ({"headrace.producer.id": "5"}, "unknown option 'headrace.producer.id'"),
        ({"headrace.enable.idempotence": "maybe"}, "headrace.enable.idempotence='maybe' is not true or false"),
    ],
)
def test_a_wrong_option_of_a_writer_is_named(given, says):
    """As those of a reader."""
    with pytest.raises(ConfigError, match=says):
        write_options({**SERVERS, **given})


def test_sparks_own_options_are_ignored():
    """It hands a checkpoint's place to sources and sinks."""
    assert write_options({**SERVERS, "topic": "t", "checkpointLocation": "/c", "queryName": "q"}).topic == "t"


def test_headers_are_wanted_or_not_before_anything_else_is_looked_at():
    """The schema is asked for first."""
    assert describe_schema_options({"includeheaders": "True"})
    assert not describe_schema_options({"nonsense": "1"})


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_guide_has_every_option_with_the_name_that_kafkas_source_has(option):
    """A row each, with its default and what it is for."""
    kinds = {BATCH: "batch", STREAM: "stream", WRITE: "write"}
    (row,) = re.findall(rf"^\| `{option.name}` \|.*$", GUIDE.read_text("utf-8"), re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == (f"`{option.kafka}`" if option.kafka else "")
    assert cells[2] == ", ".join(kinds[use] for use in option.uses)
    assert cells[3] == option.default
    assert cells[4] == option.text


def test_settings_that_belong_together_are_checked_together():
    """A setting that is wrong without another one, as those of TLS and of dead letters, may be given with it."""
    given = {
        "subscribe": "t",
        "headrace.bootstrap.servers": "a:1",
        "headrace.security.protocol": "SSL",
        "headrace.ssl.server.name": "broker",
        "headrace.on.corrupt.batch": "dead_letter",
        "headrace.dead.letter.topic": "dead",
    }
    settings = read_options(given, BATCH).settings
    assert (settings["ssl_server_name"], settings["dead_letter_topic"]) == ("broker", "dead")
    for missing in ("headrace.security.protocol", "headrace.dead.letter.topic"):
        with pytest.raises(ConfigError, match=r"option headrace\."):
            read_options({name: value for name, value in given.items() if name != missing}, BATCH)


def test_credentials_are_files(tmp_path):
    """Their paths go to executors with the other settings; a secret is not an option, and no error shows it."""
    path = tmp_path / "key"
    for name in ("headrace.api.key.file", "headrace.token.file"):
        given = {**SERVERS, name: str(path)}
        setting = name.removeprefix("headrace.").replace(".", "_")
        assert read_options({**given, "subscribe": "clicks"}, BATCH).settings[setting] == str(path)
        assert write_options({**given, "topic": "t"}).settings[setting] == str(path)
    for name, instead in (("headrace.api.key", "headrace.api.key.file"), ("headrace.token", "headrace.token.file")):
        with pytest.raises(ConfigError, match=f"Use {instead}") as raised:
            read(**{name: "hrk_secret"})
        assert "hrk_secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="unknown option"):
        read(**{"headrace.token.provider": "x"})
    far = {"headrace.bootstrap.servers": "far:1", "headrace.api.key.file": str(path)}
    with pytest.raises(ConfigError, match="in plain text"):
        read(**far)
    assert read(**far, **{"headrace.allow.plaintext.credentials": "true"}).settings["allow_plaintext_credentials"]
