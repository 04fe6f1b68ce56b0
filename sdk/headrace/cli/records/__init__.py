"""`headrace produce` and `headrace consume`: offsets, record formats, and lines in and out."""
