"""Work cut into units that run here or on a Ray cluster, with the same results: see docs/use/scale.md."""
