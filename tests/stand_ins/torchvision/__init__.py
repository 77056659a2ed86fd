"""What README needs of torchvision, where it is not installed: the same names, channels and sizes, and no more."""
