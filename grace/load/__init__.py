"""Put load on a server and measure what it can carry: closed loop, open loop, capacity."""

from grace.load.capacity import Limits, capacity
from grace.load.level import Level
from grace.load.measured import Measured
from grace.load.options import LoadOptions
from grace.load.processes import run_levels

__all__ = ["Level", "Limits", "LoadOptions", "Measured", "capacity", "run_levels"]
