"""What only a client of LMDB needs."""
