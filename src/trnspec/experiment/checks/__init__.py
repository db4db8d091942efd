"""Rules of what the values of an experiment mean together, by section of the file. Rules do not know each other."""
