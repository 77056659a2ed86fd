"""The trainability map: which starts, rates and numbers of blocks train."""
