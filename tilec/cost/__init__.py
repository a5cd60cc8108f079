"""The cost model: amounts of work and a machine in, times out."""
