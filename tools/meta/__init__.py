"""Thin torch modules that take and give back memory as the hosts' own model code does.

They exist to be traced on ``meta`` tensors: no weights are ever loaded and nothing is computed.
Only what moves memory is kept: which results are new tensors, which are written in place, what
is still referenced while the next layer runs.
"""
