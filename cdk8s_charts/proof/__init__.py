"""What only a node can prove: a program that runs there on its own, mounted from a ConfigMap, without installing anything."""
