"""How fast and how light the tools are, beside something known; run by `scripts/measure`."""
