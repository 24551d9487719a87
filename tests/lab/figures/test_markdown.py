"""Markdown of the documents."""

from lab.figures.markdown import heading, join_blocks, paragraph, picture, table

BLOCKS = (heading("Results", 1), paragraph("by `aif <x>`\n   & so on"), table(("a", "b"), [("1 | 2", "<3>")]), picture("curve", "c.png"))


def test_markdown_has_every_block_and_a_bar_in_a_cell_does_not_end_it() -> None:
    assert join_blocks(BLOCKS).splitlines() == [
        "# Results",
        "",
        "by `aif <x>` & so on",
        "",
        "| a | b |",
        "| --- | --- |",
        "| 1 \\| 2 | <3> |",
        "",
        "![curve](c.png)",
    ]
