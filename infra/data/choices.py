"""The choices of an import where the mapping leaves them open, with the reasons: the sentences that `--dry-run` shows.

Here: the sentences. Not here: the choices (periods.py, inferred_schema.py, mapped_catalogue.py).
"""

from collections.abc import Iterator

from infra.clock import DAY_MS
from infra.data.mapped_catalogue import MappedCatalogue
from infra.data.periods import cut_of, spell_time
from infra.data.sampled_impressions import REQUESTS_FEW, REQUESTS_LEAST, ROUNDS_OF_FEW
from schemas.train_choices import LIKENESS


def describe_choices(catalogue: MappedCatalogue) -> list[str]:
    """One sentence for each choice; empty for an empty log."""
    return [*_of_times(catalogue), *_of_items(catalogue)] if catalogue.sources.period is not None else []


def _of_times(catalogue: MappedCatalogue) -> Iterator[str]:
    sources, mapping = catalogue.sources, catalogue.mapping
    if mapping.holdout.hold_out and mapping.holdout.split == "user":
        yield "measured: the latest fifth of the behaviours of each user, as of the end of the log, as [evaluation] says"
    elif mapping.holdout.hold_out:
        why = "as [evaluation] says" if mapping.holdout.start is not None else "the last 15% of the positives"
        yield f"measured: {spell_time(sources.now_ms)} to {spell_time(sources.end_ms)}, {why}"
    if sources.shown is None:
        window, why = sources.window_ms(), "as the mapping says"
        if mapping.sampling.window_days is None:
            why = f"{'as long as the evaluation' if mapping.holdout.holds_out_the_end else '15% of the log'}, 28 days at most"
            why += ", and a tenth of the log before" if sources.items_pass else ""
        apart = cut_of(mapping, window) / DAY_MS
        yield f"impressions: sampled from [behaviours] every {apart:.3g} days, each with the positives of the next {window / DAY_MS:.3g} days, {why}"
        if mapping.sampling.moments is None:
            yield f"moments: where the cuts give fewer than {REQUESTS_LEAST:,} requests, others begin when a user took something; moments = 0 omits them"
    if sources.states.changes_with_time:
        times = sources.sample_times
        apart = (times[-1] - times[0]) / max(1, len(times) - 1) / DAY_MS
        yield f"features of items: computed at {len(times)} times, every {apart:.3g} days; every_days in [items] changes that"


def _of_items(catalogue: MappedCatalogue) -> Iterator[str]:
    sources, given = catalogue.sources, catalogue.mapping.items.features
    made = [name for name in sources.item_features if name not in given]
    if made:
        yield f"statistics of items: {', '.join(made)}, because no feature is derived from behaviours; popularity = false leaves them out"
    if sources.items_pass:
        yield "items: popular for less than a third of the log, so that nothing the model reads tells them apart; taken_together would"
    category = sources.roles["sim_category"]
    yield f"category of items: {category or 'none; a feature named category, or [schema] sim_category, is one'}"
    for feature in sources.features:
        column = given.get(feature.name)
        if column is not None and column.columns and column.kind is None:
            yield f"{feature.name}: {feature.kind}, because {feature.kind.sign}"
    if "learns" not in catalogue.mapping.train and catalogue.train.learns == LIKENESS:
        why = f"because the cuts give fewer than {REQUESTS_FEW:,} requests"
        yield f'learns: likeness, and each request of a cut is asked {ROUNDS_OF_FEW} times, {why}; learns = "all" in [train] changes that'
    yield f"rank_by: {catalogue.model['rank_by']}"
