"""What all rooms share: findings, reading of foreign files, the command line, words, the terminal."""

import os

# pydantic searches the metadata of every installed distribution for plugins, which slows each start. No plugin is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
