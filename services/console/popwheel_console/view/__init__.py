"""What pages are made of: links, words, drawings, and the renderer."""
