"""The broker's instruments, all in one place. Histograms are per RPC only; there are no series a partition here."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class BrokerMetrics:
    """Instruments on one registry; made once a broker, used from its event loop and from its storage threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, documentation: str) -> Histogram:
            return Histogram(f"headrace_broker_{name}", documentation, buckets=_SECONDS, registry=registry)

        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"headrace_broker_{name}", documentation, registry=registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(f"headrace_broker_{name}", documentation, registry=registry)

        self.produce_seconds = histogram("produce_seconds", "Produce calls, the wait for acknowledgements included")
        self.fetch_seconds = histogram("fetch_seconds", "Fetch calls, without the wait for data")
        self.fetch_wait_seconds = histogram("fetch_wait_seconds", "The wait for data of long polls")
        self.flush_seconds = histogram("flush_seconds", "One fsync round of one log")
        self.produced_bytes = counter("produced_bytes", "Bytes of batches appended")
        self.produced_records = counter("produced_records", "Records appended")
        self.produced_batches = counter("produced_batches", "Batches appended")
        self.duplicate_batches = counter("duplicate_batches", "Batches answered as duplicates")
        self.fetched_bytes = counter("fetched_bytes", "Bytes of batches answered")
        self.slow_appends = counter("slow_appends", "Appends that were done in a thread")
        self.blocking_reads = counter("blocking_reads", "Reads that were done in a thread")
        self.throttled = counter("throttled", "Calls refused for want of memory budget")
        self.produce_errors = counter("produce_errors", "Partitions of produce calls answered with an error")
        self.fetch_errors = counter("fetch_errors", "Partitions of fetch calls answered with an error")
        self.inflight_bytes = gauge("inflight_bytes", "Bytes of requests and answers held")
        self.waiting_fetches = gauge("waiting_fetches", "Fetches that wait for data")
        self.loop_lag_seconds = gauge("loop_lag_seconds", "How late the event loop was at its last beat")
        self.replicated_in_bytes = counter("replicated_in_bytes", "Bytes of batches copied from leaders")
        self.replicated_out_bytes = counter("replicated_out_bytes", "Bytes of batches sent to followers")
        self.damaged_fetches = counter("damaged_fetches", "Answers of leaders whose batches failed their checks")
        self.truncations = counter("truncations", "Logs cut because they had parted from their leader's")
        self.in_sync_shrinks = counter("in_sync_shrinks", "Followers taken out of an in-sync set by their leader")
        self.in_sync_expands = counter("in_sync_expands", "Followers taken into an in-sync set by their leader")
        self.unanswered_proposals = counter("unanswered_proposals", "Changes of in-sync sets that etcd did not answer")
        self.followers = gauge("followers", "Brokers that copy from this one now")
        self.following = gauge("following", "Partitions copied from other brokers")
        self.peer_suspicion = Gauge(
            "headrace_broker_peer_suspicion",
            "Phi of a broker that should be heard on replication streams: 1 means one doubt in ten is wrong",
            ["peer"],
            registry=registry,
        )
        self.under_replicated = gauge("under_replicated", "Partitions led whose in-sync set is not complete")
        self.under_min_insync = gauge("under_min_insync", "Partitions led with fewer in sync than min_insync_replicas")
        self.partitions = gauge("partitions", "Replicas held")
        self.leaders = gauge("leaders", "Partitions led")
        self.offline_logs = gauge("offline_logs", "Replicas whose log failed")
        self.damage_found = counter("damage_found", "Damage found in logs that no other replica can replace")
        self.scrubbed_bytes = counter("scrubbed_bytes", "Bytes of logs read and checked in the background")
        self.replaced_logs = counter("replaced_logs", "Damaged logs set aside and copied anew from another replica")
        self.disk_free_bytes = gauge("disk_free_bytes", "Free bytes on the data directory's volume")
        self.deleted_segments = counter("deleted_segments", "Segments removed by retention")
        self.registered = gauge("registered", "1 while the broker has a session")
