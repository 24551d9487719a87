"""A report written twice from the same blocks: Markdown, and one HTML file that loads nothing."""

from pathlib import Path

from lab.figures.markdown import Heading, Paragraph, Picture, Table, encode_html, encode_markdown

BLOCKS = (Heading("Results", 1), Paragraph("by `aif <x>`\n   & so on"), Table(("a", "b"), [("1 | 2", "<3>")]), Picture("curve", "c.png"))


def test_markdown_has_every_block_and_a_bar_in_a_cell_does_not_end_it() -> None:
    assert encode_markdown(BLOCKS).splitlines() == [
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


def test_html_carries_its_pictures_and_what_looks_like_mark_up_is_text(tmp_path: Path) -> None:
    (tmp_path / "c.png").write_bytes(b"picture")
    page = encode_html(BLOCKS, tmp_path)
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in page and "<code>aif &lt;x&gt;</code> &amp; so on" in page
    assert "<td>&lt;3&gt;</td>" in page and "http" not in page
