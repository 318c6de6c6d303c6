"""Facts of a machine as a value: probed here, or read from a profile of one that is not here."""
