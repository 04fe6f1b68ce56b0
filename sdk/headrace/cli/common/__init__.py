"""What every command uses: its session, arguments, rendering and exit codes."""
