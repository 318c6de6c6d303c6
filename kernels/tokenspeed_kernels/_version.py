"""The one place the version lives; both distributions and `tokenspeed version` read it here."""

__version__ = "0.1.0"
