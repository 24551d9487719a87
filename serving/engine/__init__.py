"""The engine: one thread that owns the tables of the resident versions, and the compiled passes of call 1 and call 2.

loop.py           the thread: changes applied, work taken, answers given; read it first. work.py: its input and output; turns.py: its faults
resident.py       a version in it: tables.py (rows in a slot, by lookup.py), a scorer, a watermark
slots.py          the shared memory that two versions live in
changes.py        row changes as arrays; arrivals.py: how fresh they make answers
workers.py        threads that help the engine's own
candidates.py     ids of a request to slots; top_k.py: the best of their scores

scorers.py        which scorer a device has: cpu.py, or cuda.py with tier_kernel.py (SimTier); device_guard.py: the first where the second fails

call 1            call_one.py, user_half.py: read these first. history.py, history_pass.py (Eq. 1), attention.py (Eq. 2-3), user_vectors.py (Algorithm 1),
                  embedded_features.py; extended_state.py after a few new behaviours; folded_user.py with behaviour_blocks.py: the user's part of call 2
                  its result: user_arrays.py, kept and carried as user_state.py
call 2            joint_pass.py, tier_counts.py with tier_planes.py
of a version      user_weights.py (call 1), version_weights.py (call 2), panels.py: their form for the tiles of vector_code.py
"""
