"""The guard: what happens between pressing Generate and the first step."""
