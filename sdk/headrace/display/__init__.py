"""What people see: progress of calls, tables in notebooks, and text of others that is safe to show."""
