"""headrace compared with other systems: the same bytes, the same promises, the same machine, the same minutes."""
