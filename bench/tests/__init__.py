"""What can be tested of the bench without a server: `python3 -m unittest discover bench`."""
