"""The demonstration: four data-parallel ranks decode with real weights and sharded output projections.

`python -m oproj_pass.demo` starts its own ranks; `torchrun --nproc-per-node 4 -m oproj_pass.demo` works too.
"""
