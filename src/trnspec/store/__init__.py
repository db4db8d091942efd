"""Copy weights and compiled artifacts between Hugging Face, S3 and local disks, in the Jobs of the cluster.

Every command can be repeated. The marker is written last, so a folder with a marker is complete and is not changed.
"""

MARKER = "COMPLETE"
"""The last file of a folder. If it exists, all other files are complete."""
FILES = "FILES.json"
"""The list of the files of an artifact with their sizes and hashes. It is written just before the marker."""
