"""A whole measured grid of layouts: which are fast, and which have too little memory to be."""
