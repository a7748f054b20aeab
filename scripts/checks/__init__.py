"""Checks of `make doctor`, by what they look at: each takes a Case and returns a Finding or several.

Guarantees: no check starts, writes or ends anything. A check raises Failure where a stage's own rule does; the message
is the finding, and the text after its last semicolon says how to fix it.
"""
