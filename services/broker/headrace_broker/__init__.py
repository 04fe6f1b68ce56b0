"""The broker: owns partitions, takes records in and gives them out."""
