"""What a hybrid KV cache serves, as data: layouts, actions, step plans, observations and the shadow worker.

Pure: nothing here reads a clock, a file or a random number, and nothing here imports another part of kvcheck.
"""
