"""Programs that show headrace at work. Each is run by a test."""
