"""The ranker: a generative model that orders AIF's answer, and whose long prefix is computed before its candidates are known."""
