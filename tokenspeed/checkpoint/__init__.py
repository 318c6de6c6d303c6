"""Facts of a checkpoint, read from its headers: what it is, how large, whether it is whole.

Nothing here imports torch and nothing reads weights; planning runs on what this package says.
"""
