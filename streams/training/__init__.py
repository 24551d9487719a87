"""Training: impressions in, checkpoints out. `aif train`, `aif export`; below it `aif train --follow` (following).

training_program.py       one run of `aif train`: read, join, fit, write; cli.py and settings.py around it
topic_events.py           the topics read to an end; topic_snapshot.py: the same from files; event_decoder.py: records to events
refused_impressions.py    dead letters of impressions that cannot be decoded
impressions.py            impressions joined as of their time, and batches of them: read it first; item_table.py, histories.py: its two sides
user_statistics.py        counts and rates of users as of the times of requests
trainer.py                the fit and its step; likeness.py: a fit of the head alone; soup.py, adam.py, trainer_state.py: parts of the fit;
                          team.py: the same in several processes
losses.py                 what is minimised; copr.py: Eq. 10
model_file.py             what to train, and how; similarity_start.py: initial weights that suit small data
questions.py              scores for chosen candidates; measures.py, bootstrap.py: HR@K, recall@K, GAUC, and their intervals; held_out.py: those of a card
comparison.py             what a model gains over the best score without a network: plain_scores.py, and of shown items shown_scores.py
ranker/                   the fit of the ranker, after that of the network
following/                online learning

one training            training_program.run_training -> trainer.fit -> trainer.Learner.take_step
one round that follows  following/follower.Follower._learn -> learner.OnlineLearner.learn -> trainer.Learner.take_step
"""
