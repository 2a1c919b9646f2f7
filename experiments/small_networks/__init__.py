"""Networks that are trained in seconds, and what is done to networks before they are published."""
