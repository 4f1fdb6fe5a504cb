"""Networks of trained drafters, one file per published form, and the folders that hold them."""
