"""Weights and compiled artifacts between Hugging Face, S3 and local disks; runs in the Jobs of the cluster.

Everything here is safe to repeat: a file that exists with the same size and hash is left alone, and a marker is
written last, so that a folder with a marker is whole.
"""

MARKER = "COMPLETE"
"""Last file of a folder. It exists only if every other file was written before it."""
FILES = "FILES.json"
"""Size and hash of each file of an artifact, written just before the marker."""
