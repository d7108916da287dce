"""How fast semel is, beside what the same machine can do at best."""
