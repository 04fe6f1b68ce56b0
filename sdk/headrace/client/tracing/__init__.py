"""Spans of clients, by OpenTelemetry's API, if the application uses it."""
