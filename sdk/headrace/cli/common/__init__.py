"""Common parts of all commands: session, arguments, rendering and exit codes."""
