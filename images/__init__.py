"""What the container images are built from; nothing here is imported by the project."""
