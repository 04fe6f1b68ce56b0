"""A call of gRPC that failed, blocking or asyncio."""

import grpc


class FailedCallError(grpc.RpcError):
    """As gRPC raises it, without metadata."""

    def __init__(self, status: grpc.StatusCode, details: str = "") -> None:
        super().__init__(details)
        self._status = status
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._status

    def details(self) -> str:
        """Return what gRPC or the server says."""
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        """Return nothing."""
        return ()
