"""The whole mutation ledger, by the part of the code that an entry breaks."""

from __future__ import annotations

from tests.mutation.ledger_followers import FOLLOWERS
from tests.mutation.ledger_groups import GROUPS
from tests.mutation.ledger_leaders import LEADERS
from tests.mutation.ledger_members import MEMBERS
from tests.mutation.ledger_metadata import METADATA
from tests.mutation.ledger_producers import PRODUCERS
from tests.mutation.ledger_storage import STORAGE_RULES

LEDGER = (*LEADERS, *FOLLOWERS, *MEMBERS, *PRODUCERS, *STORAGE_RULES, *METADATA, *GROUPS)
