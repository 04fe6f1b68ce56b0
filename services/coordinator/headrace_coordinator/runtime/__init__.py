"""The shells around `core`: registration, controller, writing topics, producer ids. All belong to the event loop."""
