"""I/O layer around `core`: registration, controller, groups, topic writes. All belong to the event loop."""
