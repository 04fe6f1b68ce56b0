"""Errors of the data source that callers may handle differently."""

import logging
from collections.abc import Sequence

from headrace.wire.errors import HeadraceError, Outcome

log = logging.getLogger("headrace.spark")


class DataLossError(HeadraceError):
    """Records that the query must read are no longer in the log; the message has partition, offsets and number.

    Retention has overtaken the query. Keep records longer, or continue without them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            outcome=Outcome.NOT_APPLIED,
            action="Keep records longer (retention_ms), or set failOnDataLoss=false to continue without them.",
        )


class OtherRowsError(HeadraceError):
    """A retried micro-batch or task lacks rows that an earlier try stored, so it is unknown which of its rows are
    stored. Make its rows deterministic, or allow duplicates.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            outcome=Outcome.UNKNOWN,
            action="Make the query return the same rows in every try, in any order, or set idempotentRetries=false, "
            "which may store rows twice.",
        )


def check_data_loss(losses: Sequence[object], fail_on_data_loss: bool) -> None:
    """Raise an error for lost records, or log it, as the option states; each entry describes one loss.

    Raises:
        DataLossError: If records are lost and `fail_on_data_loss` is set.
    """
    if losses and fail_on_data_loss:
        raise DataLossError("; ".join(map(str, losses)))
    for loss in losses:
        log.warning("skipped, as failOnDataLoss is false: %s", loss)
