"""What an answer may look like: grammars and other rules about the next token.

`lark` writes grammars as text, `compiler`, `vocabulary` and `guide` hold answers to them.
llguidance does the work of both.
"""
