"""The card as it is now: who holds it, how it got there, and what that means for the next generation."""
