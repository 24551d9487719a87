"""What two processes must agree on. No I/O.

Files:

    events.py                 shapes of the topics' records; decoding.py: read and checked
    topics.py                 the topics and the headers of their records
    requests.py, token.py     requests and answers between caller and server
    features.py               features as data: what a catalogue has; kinds.py: raw values to the numbers a network reads
    ids.py                    ids, their keys, partitions and hash buckets
    users.py                  a user's profile and history; behaviour_columns.py: the same in columns
    statistics.py             rates and counts of items as of a time, defined for imports and streams alike
    actions.py                computation allocation: what a request may get; allocation.py: costs and values;
                              knapsack.py: the rule that chooses; drop_rule.py: the rule that drops
    train_choices.py          how a model is trained
    fields.py                 dataclasses from JSON
    limits.py                 every bound of the system; errors.py: who must act
    model/                    the paper's model, equation by equation; index/: the index and the life of its versions
"""
