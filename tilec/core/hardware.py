"""Numbers that are the same for all of NVIDIA's GPUs; those that differ stand in `tilec/targets/`."""

WARP = 32  # threads
WARPGROUP = 128  # threads, which multiply together (sm_90)
ROWS = 64  # that a warpgroup multiplies
WIDE = 16  # bytes of the widest access of memory, and of which TMA wants strides to be multiples
WORD = 4  # bytes of a register, and of a bank of shared memory
SECTOR = 32  # bytes that memory moves at least
SLOT = 64  # bytes of a line that a slice of the L2 cache moves a clock, and that it fetches at least
LINE = 128  # bytes of a line of a swizzled box
BOX = 256  # elements of a box along a dimension, those that its steps skip included
RANK = 5  # dimensions of a tensor that TMA copies boxes of
