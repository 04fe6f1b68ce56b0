"""The stream source's planning against real brokers, without a JVM: leader epochs are found and compared."""

import headrace
from headrace.client.admin.epoch_ends import record_epochs, truncation_points
from headrace.spark.schema import full_schema
from headrace.spark.stream_offsets import EPOCHS
from headrace.spark.stream_reader import HeadraceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable


def test_epochs_of_a_real_log_are_kept_and_compared(headrace_cluster, topic_name):
    """What was read and stays as it was is no loss; an end below is one; a gone epoch is not judged."""
    settings = {"bootstrap_servers": headrace_cluster.bootstrap_servers}
    with headrace.Admin(**settings) as admin, headrace.Producer(**settings) as producer:
        topic_id = admin.create_topic(topic_name, partitions=2).topic_id
        for partition in (0, 1):
            producer.send_many(topic_name, [b"%d" % n for n in range(100)], partition=partition)
        producer.flush()
        given = {"headrace.bootstrap.servers": settings["bootstrap_servers"], "subscribe": topic_name}
        reader = HeadraceStreamReader({**given, "startingoffsets": "earliest"}, full_schema(False))
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        epochs = start[EPOCHS][topic_name]
        assert set(epochs) == {"0", "1"}
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        producer.send_many(topic_name, [b"more"] * 10, partition=0)
        producer.flush()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert [(task.part.start, task.part.end) for task in reader.partitions(start, end)] == [(100, 110)]
        reader.stop()

        def ask(steps):
            return admin._run(steps)

        epoch = epochs["0"]
        assert ask(record_epochs(admin._operations, "t", topic_name, {0: 109, 1: 0}, topic_id)) == {
            0: epoch,
            1: epochs["1"],
        }
        read = {0: (110, epoch), 1: (100, epochs["1"])}
        assert ask(truncation_points(admin._operations, "t", topic_name, read, topic_id)) == {}
        read = {0: (150, epoch), 1: (100, epochs["1"])}
        assert ask(truncation_points(admin._operations, "t", topic_name, read, topic_id)) == {0: 110}
        admin.delete_records(topic_name, {1: 100})
        assert ask(truncation_points(admin._operations, "t", topic_name, {1: (100, epochs["1"])}, topic_id)) == {}
