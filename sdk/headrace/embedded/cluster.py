"""Topics and metadata of a directory: what `ClusterService` answers. There is one broker, which is the directory."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.followed import FollowedDirectory
from headrace.embedded.opened import BROKER_ID, OpenDirectory
from headrace.embedded.partitions import GONE
from headrace.partition.partition_counts import check_larger
from headrace.partition.topic_configs import (
    TopicConfig,
    alter_topic_configs,
    describe_topic_config,
    normalise_topic_configs,
)
from headrace.v1 import cluster_pb2, handshake_pb2
from headrace.wire.errors import (
    HeadraceError,
    InvalidPartitionsError,
    InvalidRequestError,
    to_detail,
)
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace.wire.topic_names import check_new_topic_name

ADDRESS = "directory:1"
"""Address of the only server in metadata; no connection is made to it."""
NAME = "directory"
"""Id of the only coordinator in metadata, which is the directory, too."""
MAX_PARTITIONS = 10_000


class DirectoryCluster:
    """Handlers of one directory. Thread-safe."""

    def __init__(self, directory: OpenDirectory | FollowedDirectory) -> None:
        self._directory = directory

    def sorted_topics(self) -> list[DirectoryTopic]:
        """Return all topics by name."""
        return sorted(self._directory.all_topics(), key=lambda topic: topic.name)

    def metadata(self, request: cluster_pb2.GetMetadataRequest) -> cluster_pb2.GetMetadataResponse:
        """Answer a GetMetadata."""
        response = cluster_pb2.GetMetadataResponse(
            cluster_id=self._directory.identity,
            generation=1,
            revision=self._directory.topics.revision,
            brokers=[self._broker()],
            coordinators=[ADDRESS],
            max_batch_bytes=TopicConfig().max_batch_bytes,
            answered_by=f"directory {self._directory.path}",
            handshake=handshake_pb2.Handshake(release=RELEASE, capabilities=CAPABILITIES),
        )
        if request.brokers_only:
            return response
        if not request.topics:
            for topic in self.sorted_topics():
                with suppress(*GONE):
                    response.topics.append(self._describe(topic))
        for reference in request.topics:
            try:
                response.topics.append(self._describe(self._directory.topic(reference)))
            except HeadraceError as error:
                response.topics.add(name=reference.name, topic_id=reference.topic_id, error=to_detail(error))
        return response

    def _broker(self) -> cluster_pb2.BrokerMetadata:
        return cluster_pb2.BrokerMetadata(broker_id=BROKER_ID, address=ADDRESS, native_address=ADDRESS, version=RELEASE)

    def _describe(self, topic: DirectoryTopic) -> cluster_pb2.TopicMetadata:
        return cluster_pb2.TopicMetadata(
            name=topic.name,
            topic_id=topic.topic_id,
            max_batch_bytes=topic.config.max_batch_bytes,
            columns=topic.config.columns,
            partitions=[
                cluster_pb2.PartitionMetadata(
                    partition=number,
                    leader_id=BROKER_ID,
                    leader_epoch=self._directory.readable(topic, number).leader_epoch,
                    replicas=[BROKER_ID],
                    in_sync_replicas=[BROKER_ID],
                    eligible_leaders=[BROKER_ID],
                    min_insync_replicas=1,
                )
                for number in range(topic.partitions)
            ],
        )

    def describe_cluster(self, request: cluster_pb2.DescribeClusterRequest) -> cluster_pb2.DescribeClusterResponse:
        """Answer a DescribeCluster."""
        topics = self.sorted_topics()
        return cluster_pb2.DescribeClusterResponse(
            cluster_id=self._directory.identity,
            generation=1,
            format_version=1,
            brokers=[self._broker()],
            coordinators=[cluster_pb2.CoordinatorMetadata(coordinator_id=NAME, address=ADDRESS, version=RELEASE)],
            controller_id=NAME,
            etcd_version="none",
            topics=len(topics),
            partitions=sum(topic.partitions for topic in topics),
            revision=self._directory.topics.revision,
            drained_brokers=cluster_pb2.DrainedBrokers() if request.read_drained_brokers else None,
        )

    def create(self, request: cluster_pb2.CreateTopicsRequest) -> cluster_pb2.CreateTopicsResponse:
        """Answer a CreateTopics."""
        response, directory = cluster_pb2.CreateTopicsResponse(), self._directory.writer()
        for new in request.topics:
            answer = response.topics.add(name=new.name[:1_000])
            try:
                topic = _checked(new)
                if request.validate_only:
                    directory.check_new(topic.name)
                else:
                    directory.create(topic)
                    answer.topic_id = topic.topic_id
                answer.partitions, answer.replication_factor = topic.partitions, 1
                if new.replication_factor > 1:
                    answer.warnings.append(f"a directory keeps one copy, not {new.replication_factor}")
            except HeadraceError as error:
                answer.error.CopyFrom(to_detail(error))
        return response

    def delete(self, request: cluster_pb2.DeleteTopicsRequest) -> cluster_pb2.DeleteTopicsResponse:
        """Answer a DeleteTopics."""
        response, directory = cluster_pb2.DeleteTopicsResponse(), self._directory.writer()
        for reference in request.topics:
            answer = response.topics.add(name=reference.name[:1_000], topic_id=reference.topic_id[:16])
            try:
                if request.unclaimed:
                    raise InvalidRequestError("a directory has no unclaimed logs", action="Name topics that it has.")
                topic = self._directory.topic(reference) if request.validate_only else directory.delete(reference)
                answer.name, answer.topic_id = topic.name, topic.topic_id
            except HeadraceError as error:
                answer.error.CopyFrom(to_detail(error))
        return response

    def grow(self, request: cluster_pb2.CreatePartitionsRequest) -> cluster_pb2.CreatePartitionsResponse:
        """Answer a CreatePartitions."""
        response = cluster_pb2.CreatePartitionsResponse()
        self._change(request, response.result, lambda topic: _grown(topic, request.total_partitions))
        return response

    def alter_configs(self, request: cluster_pb2.AlterConfigsRequest) -> cluster_pb2.AlterConfigsResponse:
        """Answer an AlterConfigs."""
        response = cluster_pb2.AlterConfigsResponse()
        self._change(request, response.result, lambda topic: _altered(topic, request))
        return response

    def _change(
        self,
        request: cluster_pb2.CreatePartitionsRequest | cluster_pb2.AlterConfigsRequest,
        result: cluster_pb2.TopicResult,
        decide: Callable[[DirectoryTopic], DirectoryTopic],
    ) -> None:
        directory = self._directory.writer()
        try:
            topic = self._directory.topic(request.topic)
            result.name, result.topic_id = topic.name, topic.topic_id
            if request.validate_only:
                decide(topic)
            else:
                directory.change(topic, decide)
        except HeadraceError as error:
            result.error.CopyFrom(to_detail(error))

    def describe_configs(self, request: cluster_pb2.DescribeConfigsRequest) -> cluster_pb2.DescribeConfigsResponse:
        """Answer a DescribeConfigs."""
        response = cluster_pb2.DescribeConfigsResponse()
        if not request.topics:
            for topic in self.sorted_topics():
                _describe_configs(response.topics.add(), topic)
        for reference in request.topics:
            answer = response.topics.add(name=reference.name[:1_000], topic_id=reference.topic_id[:16])
            try:
                _describe_configs(answer, self._directory.topic(reference))
            except HeadraceError as error:
                answer.error.CopyFrom(to_detail(error))
        return response

    def init_producer_id(self, request: cluster_pb2.InitProducerIdRequest) -> cluster_pb2.InitProducerIdResponse:
        """Answer an InitProducerId: random, as at a coordinator."""
        self._directory.writer()
        return cluster_pb2.InitProducerIdResponse(producer_id=secrets.randbits(62), producer_epoch=0)


def _checked(new: cluster_pb2.NewTopic) -> DirectoryTopic:
    check_new_topic_name(new.name)
    partitions = len(new.assignments) or new.partitions or 1
    _check_partitions(partitions)
    configs = normalise_topic_configs(dict(new.configs))
    return DirectoryTopic(new.name, secrets.token_bytes(16), partitions, configs, time.time_ns() // 1_000_000)


def _check_partitions(partitions: int) -> None:
    if not 0 < partitions <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"{partitions} partitions are not 1 to {MAX_PARTITIONS}")


def _grown(topic: DirectoryTopic, partitions: int) -> DirectoryTopic:
    check_larger(topic.name, topic.partitions, partitions, topic.config)
    _check_partitions(partitions)
    return replace(topic, partitions=partitions)


def _altered(topic: DirectoryTopic, request: cluster_pb2.AlterConfigsRequest) -> DirectoryTopic:
    return replace(topic, configs=alter_topic_configs(topic.configs, dict(request.set), list(request.unset)))


def _describe_configs(answer: cluster_pb2.TopicConfigs, topic: DirectoryTopic) -> None:
    answer.name, answer.topic_id = topic.name, topic.topic_id
    answer.configs.extend(describe_topic_config(topic.configs, 1))
