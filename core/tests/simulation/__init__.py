"""Deterministic simulation: the real engine, subscription and redrive in one process, driven by one seed.

How a run goes::

    seed -> Choices      every decision comes from one random.Random(seed)           choices.py
         -> World        rows, messages or letters; a spec; a broker that fails      *_world.py, broker.py
         -> steps        one thread at a time, until the next call to a broker,
                         a lock, the clock or a journal's file: a seam               scheduler.py, threads.py
         -> checks       the invariants, after every step and at the end             invariants.py
         -> history      of a failed run, made as short as possible                  shrink.py

`nox -s simulate` runs many seeds; `nox -s simulate -- --seed 4711` runs one, and prints its history.
`model.py` is the redrive protocol alone, with every interleaving; `mutants.py` shows that faults are found.
"""
