"""headrace beside what people use: the same bytes, the same promises, the same machine, the same minutes."""
