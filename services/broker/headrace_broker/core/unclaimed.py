"""Check whether an operator may delete an unclaimed log of an existing topic, as a pure function of the key.

The caller, `runtime.log_deletion`, reads the partition's key from etcd after the request: a cached view is not
sufficient evidence for a deletion.
"""

from __future__ import annotations

from headrace_server.partition_state import PartitionState


def reason_to_keep(state: PartitionState, broker_id: int, last_epoch: int) -> str:
    """Return why the log of `broker_id`, whose last leader epoch is `last_epoch`, must be kept; empty if it may go."""
    members = {entry.broker_id for entry in state.members}
    if broker_id in {*state.replicas, *state.adding, *members}:
        return "the partition is assigned to this broker"
    if state.adding or state.removing:
        return "the partition is being reassigned"
    if state.leader is None:
        return "the partition has no leader, and this log may have records that no other replica has"
    if last_epoch > state.leader_epoch:
        return (
            f"the log has leader epoch {last_epoch}, etcd only {state.leader_epoch}: etcd was restored from a backup, "
            "and this log may have records that no other replica has"
        )
    return ""
