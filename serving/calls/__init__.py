"""The two calls of a request: whose user half, on which version, within which deadline; the states that call 1 leaves for call 2.

- user_call.py: call 1
- rank_call.py: call 2, and both in one; user_rungs.py: where it gets its user half from
- final_call.py: the second stage: the signal for a prefix, and the ranker's order
- user_halves.py: a user's history, the half made of it once for all requests that wait, and its state kept in state_pool.py
- user_moves.py: kept states made again on a version before it goes live
- carried_state.py: the state in the client's hands instead
- version_choice.py: which version answers, and not before it holds an offset
- deadline.py: the time that is left
- paced_engine.py: the engine behind its admission
- request_ids.py: ids of a request
"""
