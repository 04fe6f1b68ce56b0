"""The whole mutation ledger, by the part of the code that an entry breaks."""

from __future__ import annotations

from tests.mutation.ledger_admission import ADMISSION
from tests.mutation.ledger_batches import BATCHES
from tests.mutation.ledger_clients import CLIENTS
from tests.mutation.ledger_deletion import DELETION_RULES
from tests.mutation.ledger_faults import FAULT_RULES
from tests.mutation.ledger_followers import FOLLOWERS
from tests.mutation.ledger_groups import GROUPS
from tests.mutation.ledger_invariants import INVARIANT_RULES
from tests.mutation.ledger_leaders import LEADERS
from tests.mutation.ledger_members import MEMBERS
from tests.mutation.ledger_metadata import METADATA
from tests.mutation.ledger_producers import PRODUCERS
from tests.mutation.ledger_runtime import RUNTIME_RULES
from tests.mutation.ledger_storage import STORAGE_RULES

LEDGER = (
    *LEADERS,
    *FOLLOWERS,
    *MEMBERS,
    *RUNTIME_RULES,
    *FAULT_RULES,
    *PRODUCERS,
    *STORAGE_RULES,
    *METADATA,
    *DELETION_RULES,
    *GROUPS,
    *ADMISSION,
    *BATCHES,
    *CLIENTS,
    *INVARIANT_RULES,
)
