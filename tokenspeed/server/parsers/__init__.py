"""From what a model writes to what a client is told: reasoning, text, tool calls."""
