"""The explorer: a folder with a page to touch, made from records. Imported on first use."""
