"""The server's own view of users: their topics followed and folded into a local database, and the letters of what was refused."""
