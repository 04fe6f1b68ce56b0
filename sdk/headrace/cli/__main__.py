"""`python -m headrace.cli`, where the `headrace` script is not on the path."""

from headrace.cli.main import main

main()
