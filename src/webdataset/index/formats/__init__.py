"""Other people's index files: a module for each format, and the table of them."""
