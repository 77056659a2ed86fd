"""Other libraries: their weights as our blocks, our blocks in their configurations. One file each; none is imported
here, and none imports its library before it is asked to."""
