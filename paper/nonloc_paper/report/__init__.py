"""Reports: read run folders and the paper, compute nothing again. Imported on first use."""
