"""How long identity lasts: networks trained so that more and more of their birth is forgotten."""
