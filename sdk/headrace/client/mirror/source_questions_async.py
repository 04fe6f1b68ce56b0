"""Questions to the source of a mirror, which workers answer in the table of mirrors. See `answers` for their side."""

import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.client.base.operations import Pause
from headrace.client.mirror.rows import CommonEnd, SourceAnswer, SourceQuestion, answers_to, question_key
from headrace.client.table.table_async import AsyncTable
from headrace.wire.errors import HeadraceError, Outcome, TimedOutError

if TYPE_CHECKING:
    from headrace.client.net.connection_async import AsyncConnections
    from headrace.client.net.directory_async import AsyncDirectoryConnections

ANSWER_SECONDS = 60.0
"""Time for a worker to begin with an answer."""
LONGEST_SECONDS = 86_400.0
"""Time for which a question is open at most."""
OTHERS_SECONDS = 5.0
"""Time for other workers to begin with an answer after one could not."""
_LOOK_SECONDS = 0.2


class AsyncSourceQuestions:
    """Questions of one `AsyncMirrors`, which owns and closes the table and the connections."""

    def __init__(self, table: AsyncTable, connections: "AsyncConnections | AsyncDirectoryConnections") -> None:
        self._table = table
        self._connections = connections

    async def ask(self, question: SourceQuestion, timeout: float) -> dict[str, dict[int, CommonEnd]]:
        """Return where the logs of the question's topics end, by topic and partition, as a worker answers.

        A worker that lacks the files may fail first: its error is raised only if no other worker answers in time.

        Args:
            question: what workers ask the source.
            timeout: in seconds, for the whole answer.

        Raises:
            TimedOutError: If no worker begins within a minute, or none has finished in time.
            HeadraceError: What no worker could do.
        """
        began = time.monotonic()
        deadline, begun_by = began + timeout, began + ANSWER_SECONDS
        key = question_key(question.mirror, uuid.uuid4().hex)
        lives = timedelta(seconds=min(max(timeout, 1.0), LONGEST_SECONDS))  # The timeout may be 0, or infinite.
        await self._table.put(key, {"asked": question.to_text()}, ttl=lives)
        answers: dict[str, SourceAnswer | None] = {}
        error: HeadraceError | None = None
        others_until = deadline
        while (now := time.monotonic()) < deadline:
            answers = {worker: answer for worker, answer in answers.items() if answer is not None}
            answers |= answers_to(await self._table.get(key) or {})
            if answers:
                begun_by = now + ANSWER_SECONDS
            for answer in filter(None, answers.values()):
                if answer.error is None:
                    await self._table.delete(key)
                    return {topic: dict(ends) for topic, ends in answer.ends.items()}
                if error is None:
                    error, others_until = answer.error, now + OTHERS_SECONDS
            if error is not None and now >= others_until and None not in answers.values():
                break
            if not answers and now >= begun_by:
                break
            await self._connections.run_step(Pause(_LOOK_SECONDS))
        await self._table.delete(key)
        if error is not None:
            error.outcome = Outcome.NOT_APPLIED
            raise error
        if answers:
            raise TimedOutError(
                f"worker {', '.join(answers)} of mirror {question.mirror} has not finished within {timeout:.0f} s",
                outcome=Outcome.NOT_APPLIED,
                action="It has begun to ask the source: call again with a longer time.",
            )
        raise TimedOutError(
            f"no worker of mirror {question.mirror} answers, for {min(timeout, ANSWER_SECONDS):.0f} s",
            outcome=Outcome.NOT_APPLIED,
            action="Workers ask the source: start one with headrace mirror run, where it reaches the source and has "
            "the files that the settings name.",
        )
