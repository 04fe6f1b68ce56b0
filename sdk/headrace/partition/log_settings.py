"""Settings of a log, from those of its topic."""

from __future__ import annotations

from headrace.log.settings import LogSettings
from headrace.partition.topic_configs import TopicConfig


def log_settings(config: TopicConfig) -> LogSettings:
    """Return the log settings of a topic's settings."""
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        compacts=config.compacts,
        delete_retention_ms=config.delete_retention_ms,
        expires_records=config.is_table,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        min_dirty_ratio=config.min_dirty_percent / 100,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
