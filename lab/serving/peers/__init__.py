"""Other people's servers, for `aif bench rank`: scripts that run in an environment of their own and import nothing of ours.

A script gets a folder with arrays, prints "ready", and then answers each line "count" with the milliseconds of as many requests, as JSON.
"""
