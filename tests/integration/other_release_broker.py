"""See `other_release`."""

from tests.integration import other_release  # noqa: F401  (first)

# isort: split
from headrace_broker.__main__ import main

main()
