"""How many cycles a tile spends in each kind of vertex: pure formulas, without any planning."""
