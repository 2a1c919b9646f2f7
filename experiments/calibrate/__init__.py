"""How often unrelated networks are called related."""
