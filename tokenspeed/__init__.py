"""tokenspeed: an LLM inference engine for agentic work, shaped as an appliance."""

from tokenspeed_kernels._version import __version__

__all__ = ["__version__"]
