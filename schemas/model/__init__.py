"""The model of the paper (AIF, arXiv 2511.12934), and its stored and served forms.

In the order of the equations, each file with the slow form that specifies it:

    user_half.py    Eq. 1-3           projections, self-attention, the profile's attention
    item_half.py    Eq. 4             an item's features to its async vector
    bea.py          Algorithm 1       bridge embeddings
    lsh.py          Eq. 5-7           signatures and their similarity; ../kernels/signer.py: Eq. 5 compiled
    din.py          Eq. 8             DIN over that similarity, and its factored form
    simtier.py      Eq. 9             SimTier, and equal bits as a product
    sim_hard.py     section 3.3       sub-sequences by category
    head.py         sections 3-4      what reads all of this. The paper does not describe it
    network.py      the whole, as nearline, call 1 and call 2. Eq. 10, the loss, is streams/training/copr.py

Around it:

    spec.py parameters.py score.py    sizes and choices; the names and shapes of all arrays; the formula that orders candidates
    embeddings.py feature_places.py   features to vectors, and where each lies in them
    inputs.py behaviour_codes.py      what the network reads, from plain values and from rows of an index
    item_network.py                   stored item rows: the item half compiled
    checkpoint.py checkpoint_file.py  one file per model, and every check on it; request_split.py random_inputs.py: runs on drawn inputs
"""
