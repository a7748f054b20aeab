"""Checks of `make doctor`, by what they look at. Each takes a Case and returns a Finding or several.

None starts, writes or ends anything. A check raises Failure where a stage's own rule does: its
message is the finding, and what follows its last semicolon the cure.
"""
