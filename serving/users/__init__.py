"""The server's view of users: both user topics folded into a local database.

- user_follower.py: the thread that follows the topics: read it first
- user_store.py: the database, and decoded users in memory; user_batch.py: what a batch of records changes, and the bytes of refused ones
- user_dead_letters.py: refused records to their dead-letter topics
"""
