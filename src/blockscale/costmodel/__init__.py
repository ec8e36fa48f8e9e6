"""What a config may take before it is measured: an analytic clock, and what recorded devices teach about it."""

from blockscale.costmodel.analytic import ConfigArrays, analytic_us, must_spill
from blockscale.costmodel.features import FEATURES, features
from blockscale.costmodel.forest import Forest
from blockscale.costmodel.model import CostModel, distance
from blockscale.costmodel.portfolio import Portfolio, Source, embedded_portfolio, portfolio_for

__all__ = [
    "FEATURES",
    "ConfigArrays",
    "CostModel",
    "Forest",
    "Portfolio",
    "Source",
    "analytic_us",
    "distance",
    "embedded_portfolio",
    "features",
    "must_spill",
    "portfolio_for",
]
