"""The last hour of a topic as a pandas frame: python reader_pandas.py [host:port [topic]]."""

import sys
from datetime import timedelta

import headrace


def main(cluster: str = "localhost:7170", topic: str = "example-pandas") -> None:
    """Send views of pages, and count them by user."""
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=3, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster) as producer:
        for number in range(300):
            producer.send(topic, b"/page/%d" % (number % 7), key=b"user-%d" % (number % 3))
    with headrace.Reader(topic, bootstrap_servers=cluster, start=timedelta(hours=-1)) as reader:
        frame = reader.to_pandas(timeout=60)
    print(frame.groupby("key").size())


if __name__ == "__main__":
    main(*sys.argv[1:])
