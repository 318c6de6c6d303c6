"""What an answer may look like: grammars and other rules about the next token.

`forms` and `lark` write grammars as text and import nothing; `compiler`, `vocabulary` and `guide`
hold answers to them, through llguidance.
"""
