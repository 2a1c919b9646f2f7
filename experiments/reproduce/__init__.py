"""All figures and tables by one command, and one page of results."""
