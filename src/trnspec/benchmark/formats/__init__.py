"""Files of other tools, one module for each format: what it holds about acceptance, and what we write of it.

Each has `NAME`; `matches(content)`, whether the JSON object is of this format; and `survivals(content)`, the share of steps in which
draft 1, 2, ... was accepted, by class, empty where the file does not know it.
"""
