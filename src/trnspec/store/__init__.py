"""Weights and compiled artifacts between Hugging Face, S3 and local disks; runs in the Jobs of the cluster.

Everything here is safe to repeat. A marker is written last, so a folder with a marker is whole and is left alone.
"""

MARKER = "COMPLETE"
"""Last file of a folder. It exists only if every other file was written before it."""
FILES = "FILES.json"
"""Size and hash of each file of an artifact, written just before the marker."""
