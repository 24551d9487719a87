"""Figures of everything that measures, from declaration to document.

declared.py  declarations of lab/benches.toml
kept.py      kept runs in docs/benchmarks
document.py  docs/BENCHMARKS.md, made of both; markdown.py: its blocks
"""
