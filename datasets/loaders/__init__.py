"""One module per file format. Each finds the files of a dataset and says how to decode them."""
