"""Runs the operations of a `Table`: one after another, side by side, or ahead of who reads their pages."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from headrace.client.base.errors import ForkedError
from headrace.client.base.operations import Operation, aexecute
from headrace.client.base.side_by_side_async import AsyncSideBySide
from headrace.client.table.table_operations import ScanPage, ScanRange, TableOperations, is_repeatable
from headrace.wire.errors import HeadraceError

Result = TypeVar("Result")

MAX_IN_FLIGHT = 16
"""Calls of one `get_many` or `count` that are in flight at the same time."""


class AsyncTableCalls:
    """Belongs to a `Table`. Any number of callers may use it."""

    def __init__(self, operations: TableOperations, run_step: Callable[[Any], Any]) -> None:
        """`run_step` runs a step of an operation, as for `aexecute`."""
        self._operations = operations
        self._run_step = run_step
        self.is_forked = False
        """Whether this process is a child of the one that made the client."""

    async def run(self, operation: Operation[Result]) -> Result:
        """Run an operation; raise ForkedError in a child process."""
        if self.is_forked:
            raise ForkedError("Table")
        return await aexecute(operation, self._run_step)

    async def run_all(self, operations: Sequence[Operation[Result]]) -> list[Result]:
        """Run operations side by side, `MAX_IN_FLIGHT` at a time; return their results in their order."""
        if len(operations) == 1:
            return [await self.run(operations[0])]
        side_by_side = AsyncSideBySide(self._run_step)
        results: list[Result] = []
        started: deque[Any] = deque()
        try:
            for operation in operations:
                if len(started) == MAX_IN_FLIGHT:
                    results.append(await side_by_side.result(started.popleft()))
                started.append(side_by_side.start(operation))
            while started:
                results.append(await side_by_side.result(started.popleft()))
        finally:
            side_by_side.close()
        return results

    async def numbers(self, partitions: Sequence[int] | None, timeout: float | None) -> Iterator[int]:
        """Return the partitions to read."""
        deadline = self._operations.deadline(timeout)
        count = await self.run(self._operations.partitions(deadline))
        return iter(range(count) if partitions is None else partitions)

    async def pages(
        self,
        wanted: ScanRange,
        partitions: Sequence[int] | None,
        most: int,
        consistency: str,
        timeout: float | None,
        *,
        takes_turns: bool = False,
    ) -> AsyncGenerator[ScanPage]:
        """Yield the pages of a scan, and ask for at most `most` ahead, one of each partition.

        All pages of a partition come before those of the next one, unless they take turns.
        """
        ahead = AsyncSideBySide(self._run_step)
        numbers = await self.numbers(partitions, timeout)

        def page_at(number: int, place: bytes) -> Operation[ScanPage]:
            return self._operations.scan_page(number, wanted._replace(start=place), consistency, timeout)

        def first_pages(most: int) -> list[tuple[int, bytes, Any]]:
            return [(each, wanted.start, ahead.start(page_at(each, wanted.start))) for each in islice(numbers, most)]

        try:
            left = deque(first_pages(most))
            while left:
                number, place, started = left.popleft()
                try:
                    page = await ahead.result(started)
                except HeadraceError as error:  # Its time may have passed while the application did other things.
                    if not is_repeatable(error):
                        raise
                    page = await self.run(page_at(number, place))
                if page.next_key is None:
                    left.extend(first_pages(1))
                else:
                    following = (number, page.next_key, ahead.start(page_at(number, page.next_key)))
                    left.insert(len(left) if takes_turns else 0, following)
                yield page
        finally:
            ahead.close()
