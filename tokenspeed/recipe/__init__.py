"""The recipe: what is wanted, in YAML. Strictly read, frozen, with the origin of every value."""
