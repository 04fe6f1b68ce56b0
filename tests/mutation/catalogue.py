"""The whole mutation catalogue, by the part of the code that an entry breaks."""

from __future__ import annotations

from tests.mutation.catalogue_admission import ADMISSION
from tests.mutation.catalogue_clients import CLIENTS
from tests.mutation.catalogue_compaction import COMPACTION
from tests.mutation.catalogue_copies import COPIES
from tests.mutation.catalogue_etcd import ETCD
from tests.mutation.catalogue_groups import GROUPS
from tests.mutation.catalogue_identity import IDENTITY
from tests.mutation.catalogue_membership import MEMBERSHIP
from tests.mutation.catalogue_replication import REPLICATION
from tests.mutation.catalogue_storage import STORAGE
from tests.mutation.catalogue_tables import TABLES
from tests.mutation.catalogue_typed import TYPED

CATALOGUE = (
    *REPLICATION,
    *MEMBERSHIP,
    *ETCD,
    *STORAGE,
    *COMPACTION,
    *COPIES,
    *TABLES,
    *TYPED,
    *CLIENTS,
    *GROUPS,
    *ADMISSION,
    *IDENTITY,
)
