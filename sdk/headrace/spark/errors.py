"""The one error of the data source that a program would treat differently from others."""

from headrace.wire.errors import HeadraceError, Outcome


class DataLossError(HeadraceError):
    """Records that were to be read are not in the log any more; the message names partition, offsets and how many.

    Retention has overtaken the query. Keep records longer, or go on without them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            outcome=Outcome.NOT_APPLIED,
            action="Keep records longer (retention_ms), or set failOnDataLoss=false to go on without them.",
        )
