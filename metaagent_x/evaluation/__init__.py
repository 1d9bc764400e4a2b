"""What `evaluate.py` and `compare.py` are made of: benchmarks, the rows of results, and the tables made from them."""
