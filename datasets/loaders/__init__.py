"""One module per file format. `find(dataset, data_dir)` locates the files of the datasets whose facts its decorators say, and
returns a `Source` that decodes them; None if there are no files."""
