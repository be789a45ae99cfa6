"""The command line: one file per command, each with ``NAME``, ``add_options`` and ``run``.

A command imports what it computes with inside ``run``, so that ``--help`` and a refusal come at once.
"""
