"""Options of commands that create a topic, or change its settings."""

from typing import Annotated

import typer

NewPartitions = Annotated[
    int, typer.Option("--partitions", "-p", min=0, help="Number of partitions; 0 means the cluster's default.")
]
ReplicationFactor = Annotated[
    int,
    typer.Option(
        "--replication-factor",
        "-r",
        min=0,
        help="Replicas per partition; 0 means three, or the number of brokers if there are fewer.",
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="NAME=VALUE", help="A topic setting, for example retention_ms=3600000; repeatable."
    ),
]
