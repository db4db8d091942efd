"""Paired comparison of live OpenAI-compatible endpoints; stands alone and travels alone in an image."""

__version__ = "0.3.0"

import os

# pydantic looks for plugins in the metadata of every installed distribution, which the client would start later for; none is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
