"""Where replicas are: the placement policy of a topic, and the planners of moves. Pure; shared by SDK and services."""
