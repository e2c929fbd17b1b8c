"""One module per file format; `find` locates the files of a dataset and returns a `Source` that decodes them."""
