"""VRAM Guard: computes the peak GPU memory of a generation before it runs.

Importing this package registers nothing, patches nothing and imports neither
torch nor gradio, because the host keeps it cached across *Reload UI*.
"""

__version__ = "0.1.0"
