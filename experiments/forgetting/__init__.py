"""How long identity lasts: networks that keep ever less of their initialization."""
