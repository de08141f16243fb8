"""The demonstration: four data-parallel ranks decode with a real model and every role sharded.

`python -m oproj_pass.demo` starts its own ranks; `torchrun --nproc-per-node 4 -m oproj_pass.demo` works too.
"""
