"""From wishes and facts to a plan: pure decisions, each with its reason."""
