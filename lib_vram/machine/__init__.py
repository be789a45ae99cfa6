"""The machine: its cards, who holds their memory, and the virtual card that stands in for one."""
