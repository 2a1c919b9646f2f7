"""Models of a folder, compared pair by pair, on one page."""
