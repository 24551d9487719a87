"""The engine: one thread that owns the tables of the resident versions, and the compiled passes of call 1 and call 2.

work.py is its input and output. Five rooms, each of which imports only those below it:

    loop       engine.py: the thread. It applies changes, takes work and answers. resident.py: a version in it
    devices    scorer.py: which scorer a device has, cpu.py or cuda.py. workers.py: threads that help the engine's own
    call_one   call_one.py: a user's state. history.py has Eq. 1, attention.py Eq. 2-3 and Algorithm 1, user_state.py what call 2 reads
    call_two   joint_pass.py: scores of candidates, with DIN (Eq. 8) by `sum_signs`. tier_counts.py has SimTier (Eq. 9)
    tables     tables.py: a version's rows in an arena (arena.py). candidates.py: ids of a request to rows, and the best k

Vector code, products of matrices and the hash table are in schemas/kernels; the equations themselves in schemas/model.
"""
