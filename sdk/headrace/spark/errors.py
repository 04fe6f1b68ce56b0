"""Errors of the data source that callers may handle differently."""

import logging
from collections.abc import Sequence

from headrace.wire.errors import HeadraceError, Outcome

log = logging.getLogger("headrace.spark")


class DataLossError(HeadraceError):
    """Records that the query should read are no longer in the log; the message names partition, offsets and number.

    Retention has overtaken the query. Keep records longer, or continue without them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            outcome=Outcome.NOT_APPLIED,
            action="Keep records longer (retention_ms), or set failOnDataLoss=false to continue without them.",
        )


class OtherRowsError(HeadraceError):
    """A micro-batch or task that is tried again does not have the rows that an earlier try stored, so that it
    is unknown which of its rows are stored. Make its rows the same in every try, or let them be stored twice.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            outcome=Outcome.UNKNOWN,
            action="Make the query return the same rows in every try, in any order, or set idempotentRetries=false, "
            "which may store rows twice.",
        )


def check_data_loss(losses: Sequence[object], fail_on_data_loss: bool) -> None:
    """Raise what is lost, or log it, as the option says; each entry says where and how much.

    Raises:
        DataLossError: something is lost, and that must end the query.
    """
    if losses and fail_on_data_loss:
        raise DataLossError("; ".join(map(str, losses)))
    for loss in losses:
        log.warning("skipped, as failOnDataLoss is false: %s", loss)
