"""What every room needs once: findings, files that others wrote, the command line, words, a terminal's width."""

import os

# pydantic looks for plugins in the metadata of every installed distribution, for which each start would wait; none is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
