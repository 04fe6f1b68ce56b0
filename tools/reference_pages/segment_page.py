"""Generator of docs/reference/segment-format.md: files of a broker, from the docstrings of their modules."""

from __future__ import annotations

from headrace.log import checkpoint, directory, epochs, index, log_compaction, segment

from reference_pages.markdown import module_section, table

_INTRO = """# Files on disk

A broker has one data directory. It contains a directory for each partition, named by the topic's id and the
partition's number, so that a topic's name never reaches the file system. Numbers are little-endian.

`python -m headrace.log.dump PATH` prints a segment or a partition's directory. It is read-only.

## A partition's directory"""

_LOG = """## The log: .log

A segment consists of consecutive record batches, whose bytes are in [batch-format.md](batch-format.md). The first
batch's `base_offset` is the number in the file's name, and each batch begins at the offset where the preceding one
ends. A position in a segment is at most 2^32 - 1, so that a segment ends below 4 GiB, regardless of `segment_bytes`.
A segment file is created when the preceding one is full or old, and is changed only at its end."""

_SEALED = """## Sealed files

`leader-epochs`, `identity`, `clean` and producer snapshots are small files that are replaced as a whole: a temporary
file is written and fsynced, renamed over the old one, and the directory is fsynced. Their first line is
`headrace 1 <crc>`, where `<crc>` is the CRC32C of the rest of the file, as eight hexadecimal digits."""


def segment_body() -> str:
    """Return the page from its title."""
    files = [
        (f"`<base_offset:020d>{segment.LOG_SUFFIX}`", "a segment of the log", "the data"),
        (
            f"`<base_offset:020d>-<end_offset:020d>-<version>{segment.LOG_SUFFIX}`",
            "a compacted segment, which replaces all others of these offsets",
            "the data",
        ),
        ("`<base_offset:020d>.index`", "offset to position, sparse", "rebuilt from the segment"),
        ("`<base_offset:020d>.timeindex`", "time to position, sparser", "rebuilt from the segment"),
        (
            f"`{checkpoint.CHECKPOINT_FILE}`",
            "recovery point, log start, high watermark",
            "see [storage](../protocols/storage.md)",
        ),
        (f"`{epochs.EPOCHS_FILE}`", "the start offset of each leader epoch", "rebuilt from the batches' headers"),
        (
            f"`{log_compaction.COMPACTION_FILE}`",
            "offset below which compaction may have removed deletions",
            "the end of the last compacted segment counts",
        ),
        (
            "`producers-<offset:020d>.snapshot`",
            "idempotent producers' state at that offset; two are kept",
            "rebuilt from the batches' headers",
        ),
        (f"`*{segment.DELETED_SUFFIX}`", "a removed segment that waits `file_delete_delay_ms`", "nothing"),
        ("`*.tmp`", "an incomplete replacement", "nothing; removed at the next start"),
    ]
    return "\n\n".join(
        [
            _INTRO,
            table(("file", "contents", "if it is lost"), files),
            _LOG,
            module_section(index, "The indexes: .index and .timeindex"),
            module_section(checkpoint, "The checkpoint"),
            module_section(epochs, "The leader epochs"),
            _SEALED,
            module_section(directory, "The data directory"),
        ]
    )
