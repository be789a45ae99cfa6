"""The plan: the least harmful change that fits."""
