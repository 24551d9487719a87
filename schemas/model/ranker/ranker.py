"""The ranker's network: tokens in, logits of candidates out; and the same cut into a prefix, its extension and the candidates.

    tokens   [profile, long-term behaviours] = prefix | [newer behaviours, context] = suffix | candidates
             causal                                     causal, sees the prefix                sees both and itself

    full      all of them in one pass with an explicit mask: the specification, and training
    extend    the next tokens' keys and values, in pieces of any size
    score     candidates over the keys and values of everything before them

Any cut gives the same logits, because a token sees only earlier tokens. It reads nothing of a request: neither a length, nor an item's row, which increments
change.
A candidate's token is its id and what AIF says of it (its logits); its final logit is AIF's plus what the ranker adds. So a ranker that has learnt nothing
gives AIF's order.

Arrays: B users, n tokens, C candidates, D width, T tasks, Y layers.
Source: RelayGR; HSTU; M-FALCON (candidates in micro-batches).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.features import Scope
from schemas.model.embeddings import FeatureEmbedding, normal_table
from schemas.model.inputs import FeatureTensors
from schemas.model.ranker.layers import Kv, Layers, alone, causal
from schemas.model.spec import ModelSpec


class Ranker(nn.Module):
    """REQUIRES: spec.ranker is not None."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.ranker is not None
        self.spec, width = spec.ranker, spec.ranker.width
        self.items = normal_table(self.spec.item_buckets, width)
        self.kinds = normal_table(len(spec.schema.behaviour_kinds) + 1, width)
        self.profile = FeatureEmbedding(spec.schema.of(Scope.USER), spec.embedding_width)
        self.context = FeatureEmbedding(spec.schema.of(Scope.CONTEXT), spec.embedding_width)
        self.w_profile = nn.Linear(self.profile.width, width)
        self.w_context = nn.Linear(self.context.width, width)
        self.w_logits = nn.Linear(len(spec.tasks), width)
        self.layers = Layers(self.spec)
        self.head = nn.Linear(width, len(spec.tasks))
        if not self.head.weight.is_meta:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    # --- tokens ---------------------------------------------------------------------------------------------------------

    def profile_token(self, profile: FeatureTensors) -> Tensor:
        """[B, 1, D]: the first token."""
        return torch.as_tensor(self.w_profile(self.profile(profile)))[:, None]

    def behaviour_tokens(self, items_Bn: Tensor, kinds_Bn: Tensor) -> Tensor:
        """[B, n, D] of rows of the item table (`encode_items`) and of the kind table (`encode_kind`)."""
        return torch.as_tensor(self.items(items_Bn) + self.kinds(kinds_Bn))

    def context_token(self, context: FeatureTensors) -> Tensor:
        """[B, 1, D]: the last token before the candidates."""
        return torch.as_tensor(self.w_context(self.context(context)))[:, None]

    def candidate_tokens(self, items_BC: Tensor, aif_logits_BCT: Tensor) -> Tensor:
        """[B, C, D] of rows of the item table and AIF's logits."""
        return torch.as_tensor(self.items(items_BC) + self.w_logits(aif_logits_BCT))

    # --- the specification ----------------------------------------------------------------------------------------------

    def full(self, before_BnD: Tensor, positions_Bn: Tensor, seen_Bn: Tensor, candidates_BCD: Tensor, aif_logits_BCT: Tensor) -> Tensor:
        """Logits [B, C, T] of one pass over all tokens.

        before     profile, behaviours and context, oldest first; positions_Bn their places, ascending; seen_Bn false for padding
        """
        n, count = before_BnD.shape[1], candidates_BCD.shape[1]
        place = torch.arange(n + count, device=before_BnD.device)
        allowed = (place[None] <= place[:, None]) & ((place[None] < n) | (place[None] == place[:, None]))
        real = torch.cat([seen_Bn, seen_Bn.new_ones(seen_Bn.shape[0], count)], 1)
        mask = (allowed & real[:, None])[:, None]
        last = positions_Bn.amax(1, keepdim=True) + 1
        positions = torch.cat([positions_Bn, last.expand(-1, count)], 1)
        x = self.layers.masked(torch.cat([before_BnD, candidates_BCD], 1), positions, mask)
        return self._logits(x[:, n:], aif_logits_BCT)

    # --- the same in pieces ---------------------------------------------------------------------------------------------

    def extend(self, tokens_BnD: Tensor, past: Kv | None = None) -> Kv:
        """Keys and values of the next tokens alone, at the positions after `past`. In O(n (m + n))."""
        first = 0 if past is None else past.tokens
        positions = torch.arange(first, first + tokens_BnD.shape[-2], device=tokens_BnD.device)
        return self.layers.keys_values(tokens_BnD, positions, past, causal)

    def score(self, candidates_BCD: Tensor, aif_logits_BCT: Tensor, past: Kv, after_B: Tensor | None = None) -> Tensor:
        """Logits [B, C, T] of candidates after `past`. They do not see each other, so a caller may cut them anywhere. `after_B`: how many tokens each row
        of `past` has, where not all have as many; the values of the others must be zeros."""
        count, device = candidates_BCD.shape[-2], candidates_BCD.device
        positions = torch.full((count,), past.tokens, device=device) if after_B is None else after_B[:, None, None].expand(-1, 1, count)
        return self._logits(self.layers(candidates_BCD, positions, past, alone), aif_logits_BCT)

    def _logits(self, x: Tensor, aif_logits_BCT: Tensor) -> Tensor:
        return torch.as_tensor(aif_logits_BCT + self.head(F.layer_norm(x, (self.spec.width,))))
