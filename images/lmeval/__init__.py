"""The image of the quality check."""
