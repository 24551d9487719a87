"""The engine: one thread that owns the tables of the resident versions, and the compiled passes of call 1 and call 2.

work.py is its input and output. Five rooms, each of which imports only those below it:

loop        engine.py, read it first: the thread. It applies changes, takes work and answers
devices     scorers.py: which scorer a device has, cpu.py or cuda.py; workers.py: threads that help the engine's own
call_one    a user's state: call_one.py, read it first
call_two    scores of candidates: joint_pass.py, read it first
tables      rows in a slot of shared memory: tables.py, read it first

Vector code, and products of matrices, are in schemas/kernels.
"""
