"""Parts of pages: links, words, drawings, and the renderer."""
