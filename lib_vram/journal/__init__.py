"""What a session did: its last good and its last failed generation, and a journal on disk that outlives the process."""
