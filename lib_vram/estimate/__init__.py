"""The estimate of a whole generation: phases on a timeline, and whether they fit."""
