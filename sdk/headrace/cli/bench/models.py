"""Models of key-value workloads, and the file of a model. Pure.

The five pools are those of "Workload Analysis of a Large-Scale Key-Value Store" (Atikoglu et al., SIGMETRICS 2012).
The study fits one of them, ETC: key sizes, value sizes and gaps (section 5), and the gaps of each hour. What it states
of the others is in `POOLS`; what it shows only as a plot is assumed, as said there. It leaves open the distribution of
popularity, which is Zipf's here.

`spark_jobs.workload` writes the model of a trace to a file, which `headrace bench --workload fitted:FILE` reads.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.cli.bench.distributions import SizeModel, Tail
from headrace.wire.request_trace import TableOperation

FORMAT = 1
MAX_KEY_BYTES = 250
"""Limit of the store in the study."""
MAX_VALUE_BYTES = 1_000_000
MAX_KEYS = 10_000_000
MAX_SHAPE = 2
"""Sizes have shapes below: from 1 on a tail has no mean, but sizes are bounded. Gaps have shapes below 1."""
DEFAULT_KEYS = 1_000_000
DEFAULT_ZIPF = 0.99


@dataclass(frozen=True, slots=True)
class WorkloadModel:
    """Distributions of the requests of a key-value store, independent of each other."""

    operations: Mapping[str, float]
    """Probability of each operation, by the name of `TableOperation` in lower case."""
    hit_rate: float
    """Probability that a get finds a value."""
    keys: int
    """Number of keys that are requested again and again."""
    zipf_exponent: float
    """s, where the probability of the key of rank r is proportional to r^-s."""
    new_key_rate: float
    """Fraction of requests for a key that is requested only once."""
    key_bytes: SizeModel
    """Size of a key, one draw a key."""
    value_bytes: SizeModel
    """Size of a value, one draw a request."""
    gap_us: Tail
    """Time between two requests, in microseconds, from 0 on."""
    hourly_load: tuple[float, ...] = ()
    """Load of each hour of the day (UTC), with a mean of 1; empty means even."""

    @property
    def requests_per_second(self) -> float:
        """Average rate."""
        return 1e6 * (1 - self.gap_us.shape) / self.gap_us.scale

    def as_json(self) -> str:
        """Return the content of a model's file."""
        return json.dumps({"workload_model": FORMAT, **asdict(self)}, indent=1)


def model_of(text: str) -> WorkloadModel:
    """Return the model in a file's content.

    Raises:
        ValueError: If it is not a model; the message names the field.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("workload_model") != FORMAT:
        raise ValueError(f"it is not a model of a workload in format {FORMAT}")
    field = ""
    try:
        field = "operations"
        operations = {str(name): float(share) for name, share in document[field].items()}
        _require(operations.keys() <= {operation.name.lower() for operation in TableOperation})
        _require(all(share >= 0 for share in operations.values()))
        _require(math.isclose(sum(operations.values()), 1.0, abs_tol=1e-3))
        numbers = {}
        for field in ("hit_rate", "new_key_rate", "zipf_exponent"):
            numbers[field] = float(document[field])
            _require(0 <= numbers[field] <= (10 if field == "zipf_exponent" else 1))
        field = "keys"
        keys = int(document[field])
        _require(1 <= keys <= MAX_KEYS)
        field = "key_bytes"
        key_bytes = _size_model(document[field])
        field = "value_bytes"
        value_bytes = _size_model(document[field])
        field = "gap_us"
        gap_us = _tail(document[field])
        _require(gap_us.family == "gpd" and gap_us.location == 0 and gap_us.shape < 1)
        field = "hourly_load"
        hourly_load = tuple(float(load) for load in document[field])
        _require(len(hourly_load) in (0, 24) and all(0 < load <= 24 for load in hourly_load))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"its field {field} is missing or invalid") from None
    return WorkloadModel(
        operations, keys=keys, key_bytes=key_bytes, value_bytes=value_bytes, gap_us=gap_us, hourly_load=hourly_load,
        **numbers,
    )  # fmt: skip


def _size_model(document: Mapping[str, Any]) -> SizeModel:
    sizes = tuple(int(size) for size in document["sizes"])
    probabilities = tuple(float(share) for share in document["probabilities"])
    tail = None if document["tail"] is None else _tail(document["tail"])
    found = SizeModel(sizes, probabilities, tail, int(document["most"]), int(document["least"]))
    total = math.fsum(probabilities)
    _require(len(sizes) == len(probabilities) and all(size >= 0 for size in sizes))
    _require(all(share >= 0 for share in probabilities))
    _require(total < 1 if tail is not None else math.isclose(total, 1.0, abs_tol=1e-6))
    _require(0 <= found.least <= found.most <= MAX_VALUE_BYTES and max(sizes, default=0) <= MAX_VALUE_BYTES)
    return found


def _tail(document: Mapping[str, Any]) -> Tail:
    found = Tail(document["family"], *(float(document[name]) for name in ("location", "scale", "shape")))
    _require(found.family in ("gev", "gpd") and math.isfinite(found.location))
    _require(0 < found.scale < 1e12 and -5 < found.shape < MAX_SHAPE)
    return found


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


SHORT_VALUES = (
    *(0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606),
    *(0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980),
)
"""Probabilities of values of 0 to 14 bytes in ETC."""
HOURLY_GAPS = (
    *((16.2868, 0.155280), (15.8937, 0.141368), (15.6345, 0.137579), (15.7003, 0.142382), (16.3231, 0.160706)),
    *((17.5157, 0.181278), (18.6748, 0.196885), (19.5114, 0.202396), (20.2050, 0.201637), (20.2915, 0.193764)),
    *((19.5577, 0.178386), (18.2294, 0.161636), (17.1879, 0.140461), (16.2159, 0.119242), (15.6716, 0.104535)),
    *((15.2904, 0.094286), (15.2033, 0.096963), (14.9533, 0.098510), (15.1381, 0.096155), (15.3210, 0.094156)),
    *((15.3848, 0.100365), (15.7502, 0.111921), (16.0205, 0.131946), (16.3238, 0.147258)),
)
"""Scale in microseconds and shape of the gaps of ETC in each hour of the day (UTC)."""


def _hourly_load() -> tuple[float, ...]:
    rates = [(1 - shape) / scale for scale, shape in HOURLY_GAPS]
    return tuple(rate * len(rates) / math.fsum(rates) for rate in rates)


ETC = WorkloadModel(
    operations={"get": 30 / 31, "put": 1 / 31},
    hit_rate=0.814,
    keys=DEFAULT_KEYS,
    zipf_exponent=DEFAULT_ZIPF,
    # Half of the keys have 1 % of the requests.
    new_key_rate=0.01,
    key_bytes=SizeModel((), (), Tail("gev", 30.7984, 8.20449, 0.078688), MAX_KEY_BYTES, least=1),
    value_bytes=SizeModel(
        tuple(range(len(SHORT_VALUES))),
        SHORT_VALUES,
        Tail("gpd", len(SHORT_VALUES), 214.476, 0.348238),
        MAX_VALUE_BYTES,
    ),
    gap_us=Tail("gpd", 0.0, 16.0292, 0.154971),
    hourly_load=_hourly_load(),
)
POOLS = {
    # Status of users: keys of 16 or 21 bytes (as many of each, assumed), values of 2 bytes, hardly any update.
    "usr": replace(
        ETC,
        operations={"get": 0.998, "put": 0.002},
        hit_rate=0.982,
        new_key_rate=0.0,
        key_bytes=SizeModel((16, 21), (0.5, 0.5), None, MAX_KEY_BYTES),
        value_bytes=SizeModel((2,), (1.0,), None, MAX_VALUE_BYTES),
    ),
    # Metadata of objects of one application; mix and sizes are assumed to be those of ETC.
    "app": replace(ETC, hit_rate=0.929, new_key_rate=0.0),
    # Anything without a pool of its own.
    "etc": ETC,
    # Browsers as servers know them: mostly written; nine of ten keys have 31 bytes (the others, and values, assumed).
    "var": replace(
        ETC,
        operations={"get": 0.18, "put": 0.82},
        hit_rate=0.937,
        new_key_rate=0.0,
        key_bytes=SizeModel((31,), (0.9,), ETC.key_bytes.tail, MAX_KEY_BYTES, least=1),
    ),
    # Locations of services: the same load at every hour; sizes are assumed to be those of ETC.
    "sys": replace(ETC, operations={"get": 0.675, "put": 0.325}, hit_rate=0.987, new_key_rate=0.0, hourly_load=()),
}
"""Models of the study's pools by name; all with the gaps of ETC, the one pool for which it states them."""
