"""Decisions of the server as pure functions: values in, values out.

- admission.py: who is admitted: costs learnt, waits predicted, floods recognised
- choice.py: how much work one request gets
- price.py: the price of a millisecond of the engine
- ladder.py: where call 2 gets the user half from
- relay_trigger.py: which prefixes are computed before their rankings; relay_rungs.py: what a final ranking takes; kv_pages.py: pages, counted
- final_order.py: the ranker's logits and AIF's scores to the final order
- routing.py: which server gets a user's calls
- row_ages.py: how old rows are; broker_clock.py: this machine's clock against the broker's
- user_view.py: the bytes of the view of users, and whether a stored one still fits
- tensors.py: tensors of the Open Inference Protocol; infer_body.py: the bodies around them; json_bounds.py: how large a JSON text is
- answer_check.py: whether an answer equals a reference
"""
