"""Weights and compiled artifacts between Hugging Face, S3 and local disks; runs in the Jobs of the cluster.

Everything here is safe to repeat: what is there already with the same size and hash is left alone, and a marker is
written last, so that what has one is whole. Imports nothing else of this project: it travels alone in an image.
"""

MARKER = "COMPLETE"
"""Last file of a folder; its presence says that every other file was written before it."""
FILES = "FILES.json"
"""Size and hash of each file of an artifact, written just before the marker."""
