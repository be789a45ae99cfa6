"""What went wrong, from an error text or a console log: its kind, its cause by evidence, and the cure."""
