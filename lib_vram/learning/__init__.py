"""What this machine's generations really took, kept in a small file, and what that says about the next one."""
