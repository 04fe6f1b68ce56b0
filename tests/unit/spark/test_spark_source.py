"""What the data source makes, and for which Spark."""

import pyspark
import pytest
from headrace.client.base.errors import ConfigError
from headrace.spark.source import HeadraceDataSource, check_version
from pyspark.sql.types import StructType

FACTORIES = {"reader": (), "streamReader": (), "writer": (False,), "streamWriter": (False,)}


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_earlier_spark_is_refused_in_one_sentence(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By everything that the source makes, before it looks at options: a reader would start and lose its limits."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.3")
    source = HeadraceDataSource({})
    with pytest.raises(ConfigError) as raised:
        getattr(source, factory)(StructType(), *FACTORIES[factory])
    assert str(raised.value) == "the data source headrace needs Spark 4.2 or later, and this is pyspark 4.1.3"


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev1", "4.10.0", "5.0.0rc1", pyspark.__version__])
def test_later_ones_will_do(version: str) -> None:
    """By their numbers, not by their text."""
    check_version(version)
