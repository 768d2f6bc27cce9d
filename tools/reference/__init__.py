"""The pages of docs/reference, made from the code: `make docs` writes them, and a test says when one is out of date."""
